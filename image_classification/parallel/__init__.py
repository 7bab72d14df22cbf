"""Many processes: data, tensor and pipeline parallel training over Paddle's fleet.

`env` finds this process's place and knows no Paddle; `context.Context` is what the trainer asks of the other processes,
`single.SingleProcess` the same when there are none.
"""
