"""From a model and a plan to programs: named and chosen plans, compiling, micro-batches, further programs."""
