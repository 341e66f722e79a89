"""Graph and module are compared on the example inputs: results, gradients and buffers."""
