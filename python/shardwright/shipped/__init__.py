"""Models that have names, such as `llama-3-8b`: their configs, and their graphs without weights.

`table` says what there is, `graph` keeps graphs for the next start; neither needs PyTorch for that.
`making` makes a model on meta, of a class of Transformers or of `evoformer`.
"""
