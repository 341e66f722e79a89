"""Types of models of Transformers: their tasks, small configs, and examples."""
