import torch

BLOCK
x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [2, 2, 2]
dist.destroy_process_group()
