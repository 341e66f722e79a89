"""What operators, messages and the runtime take on the devices here, as the file of a cluster.

All ranks measure at the same time: devices of one machine share its memory, and perhaps its cores.
"""
