"""A PyTorch module over a Weft reducer: a replacement for DistributedDataParallel in a hundred lines.

Autograd's hook of a parameter calls reducer.ready as soon as its gradient is complete. Threads: the thread
that trains.
"""
import contextlib

import torch

import weftsync as weft

TYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
         torch.complex64: "c64", torch.complex128: "c128"}
STATE_TYPES = {**TYPES, torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "u8"}


class Synchronised:
    """A module whose gradients `step` averages over the ranks of comm."""

    def __init__(self, module, comm, uses=None, ignored=(), **options):
        """uses: for parameters by name, how often autograd reports their gradients in a step, if not once.
        ignored: names of parameters and buffers that are not synchronised."""
        self.module, self.comm = module, comm
        self.view = options.get("mode") == "view"
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad and name not in ignored]
        self.parameters = [parameter for _, parameter in named]
        self.absent = options.get("absent", False)
        self.sparse = {f"{name}.weight" for name, layer in module.named_modules() if getattr(layer, "sparse", False) is True
                       and hasattr(layer, "weight")}
        self.sparse_indices = [index for index, (name, _) in enumerate(named) if name in self.sparse]
        # Autograd gives a gradient its parameter's strides, if these cover memory without gaps.
        params = [weft.Param(name, parameter.shape, TYPES[parameter.dtype], parameter.stride(),
                             (uses or {}).get(name, 1), value=parameter.data_ptr(), sparse=int(name in self.sparse))
                  for name, parameter in named]
        # State without gradients follows, so that a parameter has the same number in both lists.
        params += [self._state(name, tensor, "state_only") for name, tensor in module.named_parameters()
                   if not tensor.requires_grad and name not in ignored]
        params += [self._state(name, tensor, "buffer") for name, tensor in module.named_buffers() if name not in ignored]
        params += [weft.Param(name, (), flags="ignored") for name in ignored]
        self.reducer = weft.Reducer(comm, params, **options)
        self.finish_options = {}
        self.open = False  # True inside a step
        self.ready = set()
        self.hooks = []
        for index, parameter in enumerate(self.parameters):
            self.hooks.append(parameter.register_post_accumulate_grad_hook(self._hook(index)))
        self._look()

    def broadcast_state(self, root=0):
        """Broadcast root's parameters and buffers."""
        self.reducer.broadcast(root, chunk_bytes=4096)

    @staticmethod
    def _state(name, tensor, flags):
        return weft.Param(name, tensor.shape, STATE_TYPES[tensor.dtype], tensor.stride(), value=tensor.data_ptr(),
                          flags=flags)

    @contextlib.contextmanager
    def step(self, **begin):
        """Run a reducer step around the backward passes of the block."""
        self.reducer.begin(**begin)
        self.open, self.ready = True, set()
        try:
            yield
            if not begin.get("local"):
                self._hand_over()
        finally:
            self.open = False
        self.reducer.finish(rest_absent=self.absent, **self.finish_options)
        if not begin.get("local"):
            self._receive_sparse()
        if self.absent and not begin.get("local"):
            self._receive()

    def backward(self, loss, create_graph=False, **begin):
        """Run a step of one backward pass."""
        with self.step(**begin):
            loss.backward(create_graph=create_graph)

    def replan(self):
        """Re-plan buckets in the order of readiness; views keep their values."""
        self.reducer.replan()
        self._look()

    def _look(self):
        """In view mode, point gradients at the reducer's views."""
        for index, parameter in enumerate(self.parameters if self.view else []):
            if index in self.sparse_indices:
                continue
            parameter.grad = as_tensor(self.reducer.view(index), parameter.dtype)

    def _hand_over(self):
        """Pass on gradients of earlier backward passes whose parameters the last pass did not use."""
        for index in set(range(len(self.parameters))) - self.ready:
            parameter = self.parameters[index]
            if parameter.grad is not None and (not self.view or index in self.sparse_indices):
                self.ready.add(index)
                self._ready(index)

    def _ready(self, index):
        """Pass a complete gradient to the reducer."""
        parameter = self.parameters[index]
        if index not in self.sparse_indices:
            self.reducer.ready(index, parameter.grad.data_ptr() or None)
            return
        self.reducer.ready_sparse(index, parameter.grad._indices().contiguous(), parameter.grad._values().contiguous())

    def _receive_sparse(self):
        """Fetch the results of sparse parameters from the reducer."""
        for index in self.sparse_indices:
            indices, values = map(torch.from_numpy, self.reducer.sparse_result(index))
            shape = self.parameters[index].shape
            self.parameters[index].grad = torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True)

    def _receive(self):
        """Fetch the other ranks' gradients for parameters without one here: in copy mode they are still in
        the reducer."""
        for index in set(range(len(self.parameters))) - self.ready:
            parameter = self.parameters[index]
            if not self.view and index not in self.sparse_indices and not self.reducer.param(index).absent_everywhere:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self.reducer.result(index, parameter.grad)

    def zero_grad(self):
        """Zero gradients in place in view mode; drop them in copy mode."""
        for parameter in self.parameters:
            if self.view and not (parameter.grad is None or parameter.grad.is_sparse):
                parameter.grad.zero_()
            else:
                parameter.grad = None

    def close(self):
        for hook in self.hooks:
            hook.remove()
        if self.view:
            for parameter in self.parameters:  # the views end with the reducer
                parameter.grad = None
        self.reducer.close()

    def _hook(self, index):
        def hook(parameter):
            if self.open:
                self.ready.add(index)
                self._ready(index)
        return hook


def as_tensor(array, dtype):
    """Return a tensor over the same memory. NumPy has no bf16, so its elements come as their bits."""
    tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype == torch.bfloat16 else tensor
