"""`shardwright train CONFIG.yaml`: a training run that a file describes, for who has a model and no loop."""
