import torch
import torch.distributed as dist
import weftsync.torch

dist.init_process_group("weft")
torch.manual_seed(1)
model = torch.nn.Linear(3, 1)
BLOCK
model(torch.full((1, 3), float(dist.get_rank() + 1))).sum().backward()
assert model.module.weight.grad.tolist() == [[1.5, 1.5, 1.5]]
dist.destroy_process_group()
