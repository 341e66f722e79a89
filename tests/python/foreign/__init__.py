"""Models that nobody here wrote, each through the whole system and beside the single device.

`building` makes tiny models of other packages, with an example; `trying` takes one through capture, compiling
and two steps on two ranks; `children` does that in processes of their own, with limits; `results` is the file
of what was found, from which a run goes on; `figures` and `table` make the page of it.

    python -m foreign --only transformers:llama,timm:resnet18
"""
