"""PyTorch's tensors in Weft's collectives. Each function returns its problems, as texts."""
import torch


def tensors(comm):
    """tensors of every type are used in place, and new results are tensors too"""
    problems, size, rank = [], comm.size, comm.rank

    def check(right, what):
        problems.extend([] if right else [what])

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8):
        x = torch.arange(1000).remainder(50).to(dtype)
        alias, place, before, wanted = x.view(10, 100)[3], x.data_ptr(), x.clone(), x * size
        made = comm.new.all_reduce(x)
        check(torch.equal(x, before), f"{dtype}: a new array changes the given one")
        check(made.dtype == dtype and torch.equal(made, wanted), f"{dtype}: new {made}")
        made += 1
        comm.all_reduce(x)
        check(x.data_ptr() == place, f"{dtype}: the tensor has moved")
        check(torch.equal(x, wanted) and torch.equal(alias, wanted[300:400]), f"{dtype}: in place {x}")
    truths = torch.tensor([rank == 0, False, True])
    made = comm.new.all_reduce(truths, "max")
    comm.all_reduce(truths, op="min")
    check(made.dtype == torch.bool and made.tolist() == [True, False, True], f"bool: new {made}")
    check(truths.tolist() == [size == 1, False, True], f"bool: in place {truths}")
    parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
    comm.broadcast(parameter.detach(), root=1)
    check(parameter.tolist() == [1.0] * 3, f"a parameter: {parameter}")
    gathered = comm.new.all_gather(torch.full((2, 2), rank, dtype=torch.bfloat16))
    check(gathered.shape == (size, 2, 2) and gathered[-1, 0, 0] == size - 1, f"all_gather: {gathered}")
    return problems


ARRAY_BEHAVIOURS = {function.__name__: function for function in (tensors,)}
