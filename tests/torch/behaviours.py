"""Cases of the backend weft that torch's suite does not have. rank.py runs each on all ranks, in a process group."""
import gc
import inspect
import os
import signal
import threading
import time
import traceback
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist


def expect(condition, what, *evidence):
    if not condition:
        raise AssertionError("\n".join([what, *map(str, evidence)]))


def expect_raises(text, call, *arguments, **named):
    """Return the RuntimeError that the call raises, whose text contains text."""
    try:
        call(*arguments, **named)
    except RuntimeError as error:
        expect(text in str(error), f"the error contains {text!r}", error)
        return error
    raise AssertionError(f"no RuntimeError with {text!r}")


def expect_refused(text, call):
    """Expect a ValueError of the call, whose text contains text."""
    try:
        call()
    except ValueError as error:
        expect(text in str(error), f"the error contains {text!r}", error)
    else:
        raise AssertionError(f"no ValueError with {text!r}")


def weft_asynchronous():
    """an all-reduce that nobody waits for completes, and its future's callbacks may call collectives"""
    rank, size = dist.get_rank(), dist.get_world_size()
    strided = torch.full((4, 6), float(rank)).t()
    work = dist.all_reduce(strided, async_op=True)
    end = time.monotonic() + 20
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    expect(work.is_success() and bool((strided == sum(range(size))).all()), "strided all-reduce", strided)
    one, two = torch.ones(3), torch.ones(3)

    def then(future):
        return dist.all_reduce(two, async_op=True).get_future().wait()[0] + future.value()[0]

    total = dist.all_reduce(one, async_op=True).get_future().then(then).wait()
    expect(total.tolist() == [2.0 * size] * 3, "chained futures", total)


def weft_lifetime():
    """tensors of an operation stay alive until it is complete"""
    works = [dist.all_reduce(torch.full((1000,), 1.0), async_op=True) for _ in range(50)]
    for work in works:
        work.wait()
        expect(bool((work.result()[0] == dist.get_world_size()).all()), "result", work.result())


def weft_freed():
    """tensors whose program keeps neither them nor the Work keep their memory until the operation is complete"""
    rank, count = dist.get_rank(), 200000
    total, message = torch.zeros(count), torch.zeros(count)
    if rank == 0:
        for _ in range(3):
            dist.all_reduce(torch.full((count,), 1.0), async_op=True)
        dist.isend(torch.full((count,), 3.0), 1)
        gc.collect()
        garbage = [torch.full((count,), 7.0) for _ in range(40)]  # takes memory that was freed
        dist.barrier()
        expect(len(garbage) == 40, "garbage")
    else:
        time.sleep(0.3)  # rank 0 has called by then
        for _ in range(3):
            total.fill_(1.0)
            dist.all_reduce(total)
            expect(bool((total == dist.get_world_size()).all()), "sum", total)
        if rank == 1:
            dist.recv(message, 0)
            expect(bool((message == 3).all()), "message", message)
        dist.barrier()


def weft_replaced():
    """tensors that get another memory while an operation uses theirs do not receive its result, which harms nothing"""
    rank, size, count = dist.get_rank(), dist.get_world_size(), 200000
    tensors = [torch.full((count,), 1.0) for _ in range(4)]
    if rank == 0:
        works = [dist.all_reduce(one, async_op=True) for one in tensors[:2]] + [dist.isend(tensors[2], 1)]
        places = [one.data_ptr() for one in tensors]
        tensors[0].set_(torch.zeros(3))
        tensors[1].data = torch.zeros(3)
        tensors[2].set_(torch.zeros(3))
        gc.collect()
        garbage = [torch.full((count,), 7.0) for _ in range(40)]  # takes memory that was freed
        expect(not {one.data_ptr() for one in garbage} & set(places[:3]), "the memory is not freed")
        dist.barrier()
        for work in works:
            work.wait()
        expect(all(bool((one == 7).all()) for one in garbage), "nothing is written into other tensors")
        expect([one.tolist() for one in tensors[:3]] == [[0.0] * 3] * 3, "the new memory", tensors)
    else:
        time.sleep(0.3)  # rank 0 has called by then
        for one in tensors[:2]:
            dist.all_reduce(one)
            expect(bool((one == size).all()), "sum", one)
        if rank == 1:
            dist.recv(tensors[3], 0)
            expect(bool((tensors[3] == 1).all()), "message", tensors[3])
        dist.barrier()


def weft_finalizers():
    """finalizers that wait for the operation whose result is being written, or end the group again, do not block"""
    from weftsync.torch import _operations
    group, errors = dist.new_group(), []

    class Owner:
        def __init__(self, call):
            self.call, self.me = call, self

        def __del__(self):
            try:
                self.call()
            except RuntimeError as error:
                errors.append(str(error))

    def spread(*arguments):  # which writes the result
        end = time.monotonic() + 20
        while not works and time.monotonic() < end:
            time.sleep(0.001)
        Owner(works[0].wait)
        Owner(works[0].is_completed)
        Owner(lambda: works[0].get_future().done())
        gc.collect()
        own(*arguments)

    strided, works, own = torch.full((4, 6), 1.0).t(), [], _operations.spread
    _operations.spread = spread
    try:
        works.append(dist.all_reduce(strided, group=group, async_op=True))
        works[0].wait()
    finally:
        _operations.spread = own
    work = works[0]
    expect(bool((strided == dist.get_world_size()).all()), "sum", strided)
    expect(len(errors) == 1 and "on the thread that writes the result" in errors[0], "the finalizer's error", errors)
    expect(work.get_future().done() and work.is_success(), "complete")
    before = group.comm._before_close
    before += [gc.collect, lambda: (Owner(group.abort), Owner(group.shutdown))]
    group.shutdown()
    expect(group.comm.closed and len(errors) == 1, "the group is closed", errors)


def weft_forked_loader():
    """worker processes that a DataLoader forks while operations are outstanding do not disturb them"""
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.full((1000,), float(rank))
    work = dist.all_reduce(value, async_op=True) if rank == 0 else None
    future = None if work is None else work.get_future()
    loader = torch.utils.data.DataLoader(range(12), batch_size=3, num_workers=2, multiprocessing_context="fork")
    expect([batch.tolist() for batch in loader] == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(4)], "loaded")
    if work is None:
        dist.all_reduce(value)
    else:
        future.wait()
    expect(bool((value == sum(range(size))).all()), "sum", value)
    dist.barrier()


def weft_messages():
    """messages match by tag in any order, and a receive from any rank names the sender"""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for peer in range(1, size):
            second, first, empty = torch.zeros(5, dtype=torch.int64), torch.zeros(300000), torch.zeros(0)
            dist.recv(second, peer, tag=2)
            dist.recv(empty, peer, tag=3)
            dist.recv(first, peer, tag=1)
            expect(second.tolist() == [peer] * 5 and bool((first == peer).all()), "tags", second, first)
        froms = []
        for _ in range(2 * (size - 1)):
            value = torch.zeros(1)
            froms.append(dist.recv(value, tag=7))
            expect(value.item() == froms[-1], "any source", froms)
        expect(sorted(froms) == sorted(2 * list(range(1, size))), "senders", froms)
    else:
        works = [dist.isend(torch.full((300000,), float(rank)), 0, tag=1),
                 dist.isend(torch.full((5,), rank), 0, tag=2), dist.isend(torch.zeros(0), 0, tag=3),
                 dist.isend(torch.full((1,), float(rank)), 0, tag=7),
                 dist.isend(torch.full((1,), float(rank)), 0, tag=7)]
        for work in works:
            work.wait()


def weft_receive_timeout():
    """a receive that passes its deadline is withdrawn, and the next one works"""
    group, rank = dist.new_group(), dist.get_rank()
    if rank == 0:
        group.set_timeout(timedelta(seconds=1))
        expect_raises("timed out", dist.recv, torch.zeros(1), 1, group=group)
        group.set_timeout(timedelta(seconds=60))
    dist.barrier()
    value = torch.full((1,), float(rank))
    if rank == 0:
        dist.recv(value, 1, group=group)
        expect(value.item() == 1, "received", value)
    elif rank == 1:
        dist.send(value, 0, group=group)


def weft_timeout():
    """an operation that other ranks do not call fails with a text that torch's users recognise"""
    group = dist.new_group()
    group.set_timeout(timedelta(seconds=1))
    if dist.get_rank() == 0:
        error = expect_raises("timed out", dist.all_reduce, torch.ones(2), group=group)
        expect("Timed out waiting 1000ms" in str(error), "Gloo's words", error)
        expect(error.__cause__ is not None, "the cause names the ranks", error)
    dist.barrier()


def weft_versions():
    """two versions of Weft in one job are one error on all ranks, which names both"""
    from weftsync.torch import _bootstrap
    own, last = _bootstrap.version(), dist.get_world_size() - 1
    if dist.get_rank() == last:
        _bootstrap.version = lambda: 90900
    try:
        expect_raises(f" on rank 0, 9.9.0 on rank {last}", dist.new_group)
    finally:
        _bootstrap.version = lambda: own
    group = dist.new_group()
    value = torch.ones(2)
    dist.all_reduce(value, group=group)
    expect(value.tolist() == [float(last + 1)] * 2, "a later group works", value)


def weft_absent_rank():
    """creating a group fails after its timeout and names the absent ranks, and the next try of all ranks works"""
    from weftsync.torch._group import ProcessGroupWeft
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.get_group_store()
    for present in sorted({1, size - 1}):
        store = dist.PrefixStore(f"absent {present}/", store)
        if rank < present:
            error = expect_raises("Timed out waiting 2000ms", ProcessGroupWeft, store, rank, size,
                                  timedelta(seconds=2))
            absent = list(range(present, size))
            named = f"rank {absent[0]} of" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))} of"
            expect(named in str(error) and error.__cause__ is not None, "names the absent ranks", error)
            expect(isinstance(error, dist.DistBackendError), "the kind of the error", repr(error))
        dist.barrier()
        group, value = ProcessGroupWeft(store, rank, size, timedelta(seconds=60)), torch.ones(2)
        group.allreduce([value]).wait()
        expect(value.tolist() == [float(size)] * 2, "the next try", value)
        group.shutdown()


def weft_creation_fails():
    """what the library refuses while a group is created is a RuntimeError, and an error of the store comes first"""
    from weftsync.torch import _bootstrap
    from weftsync.torch._group import ProcessGroupWeft
    rank, size, seconds = dist.get_rank(), dist.get_world_size(), timedelta(seconds=60)
    store = dist.PrefixStore("fails/", dist.group.WORLD.get_group_store())
    if rank == size - 1:
        os.environ["WEFT_BACKEND"] = "nonesuch"
    try:
        error = expect_raises("nonesuch", ProcessGroupWeft, store, rank, size, seconds)
    finally:
        os.environ.pop("WEFT_BACKEND", None)
    expect(isinstance(error, dist.DistBackendError) and error.__cause__.ranks == (() if rank == size - 1 else (size - 1,)),
           "the error", error)

    class Gone(_bootstrap.StoreExchange):
        def __call__(self, mine):
            if self._round == 1:
                raise dist.DistStoreError("the store is gone")
            return super().__call__(mine)

    error = expect_raises("the store is gone", _bootstrap.create, Gone(store, rank, size, seconds), rank, size)
    expect(isinstance(error, dist.DistStoreError), "the exchange's own error", repr(error))
    group = ProcessGroupWeft(store, rank, size, seconds)
    group.barrier().wait()
    group.shutdown()


def weft_destroyed():
    """calls of a destroyed group say so, and to abort or destroy it again does nothing"""
    group, value = dist.new_group(), torch.ones(2)
    dist.all_reduce(value, group=group)
    dist.destroy_process_group(group)
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    for call in (lambda: group.allreduce([value]), lambda: group.allreduce([sparse]), lambda: group.barrier(),
                 lambda: group.send([value], 0, 1), lambda: group.recv([value], 0, 1),
                 lambda: group.recv_anysource([value], 1), lambda: group.monitored_barrier(),
                 lambda: group.split_group([0])):
        expect_raises("the process group was destroyed", call)
    group.abort()
    group.shutdown()


def weft_shutdown_beside_message():
    """a shutdown does not close the communicator below a message that another thread starts"""
    group, rank, value, works = dist.new_group(), dist.get_rank(), torch.zeros(1), []
    if rank == 0:
        calling, send = threading.Event(), group.comm.send_tagged

        def late(*arguments, **named):
            calling.set()
            time.sleep(0.5)  # the other thread calls shutdown meanwhile
            return send(*arguments, **named)

        group.comm.send_tagged = late
        thread = threading.Thread(target=lambda: works.append(group.send([torch.ones(1)], 1, 5)))
        thread.start()
        expect(calling.wait(30), "the thread sends")
    elif rank == 1:
        dist.recv(value, 0, group, 5)
        expect(value.item() == 1, "received", value)
    group.shutdown()
    if rank == 0:
        thread.join()
        expect(len(works) == 1, "the message was sent")
    dist.barrier()


def weft_interrupted_mean():
    """Ctrl-C while a mean is divided does not let a later call divide it again"""
    rank, size = dist.get_rank(), dist.get_world_size()
    options = dist.AllreduceOptions()
    options.reduceOp, options.asyncOp = dist.ReduceOp.AVG, False
    value = torch.tensor([rank * 1000])
    work = dist.group.WORLD.allreduce([value], options)
    finish = work._finish

    def interrupted():
        finish()
        raise KeyboardInterrupt

    work._finish = interrupted
    try:
        work.wait()
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("expected KeyboardInterrupt")
    expect_raises("Ctrl-C", work.wait)
    expect(value.item() == sum(range(size)) * 1000 // size, "divided once", value)


def weft_gloo_guard():
    """while these tests run, the constructor of ProcessGroupGloo raises unless the test asks for gloo by name"""
    from torch.distributed import distributed_c10d as c10d
    try:
        c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=10))
    except AssertionError as error:
        expect("expected weft" in str(error), "the guard's error", error)
    else:
        raise AssertionError("a ProcessGroupGloo was made")


def weft_abort():
    """abort fails outstanding collectives and receives on all ranks, and a new group works afterwards"""
    group = dist.new_group()
    received = dist.irecv(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size(), group=group)
    dist.barrier()
    if dist.get_rank() == 0:
        group.abort()
    expect_raises("aborted", received.wait)
    expect_raises("aborted", dist.all_reduce, torch.ones(1), group=group)
    dist.barrier()


def weft_shorter_message():
    """a receive whose tensor is longer or shorter than the message fails, and later messages arrive"""
    rank = dist.get_rank()
    if rank == 0:
        expect_raises("2 elements, expected 3", dist.recv, torch.zeros(3), 1)
        expect_raises("recv", dist.recv, torch.zeros(1), 1)
        value = torch.zeros(2)
        expect(dist.recv(value) == 1 and value.tolist() == [1.0, 1.0], "received", value)
    elif rank == 1:
        for _ in range(3):
            dist.send(torch.ones(2), 0)
    dist.barrier()


def weft_message_types():
    """a message of another element type than its receive's is an error that names both types, on the receiving rank"""
    rank = dist.get_rank()
    if rank == 0:
        value = torch.zeros(4, dtype=torch.int32)
        error = expect_raises("f32 x 4", dist.recv, value, 1)
        expect("i32 x 4" in str(error), "names the receive's type", error)
        expect_raises("f32 x 9", dist.recv, torch.zeros(4), 1)
        flags = torch.zeros(2, dtype=torch.float8_e4m3fnuz)  # a type that Weft does not know
        dist.recv(flags, 1)
        expect(flags.float().tolist() == [1.0, 2.0], "bytes of an unknown type", flags)
        expect_raises("2 elements, expected 3", dist.recv, flags.new_zeros(3), 1)
    elif rank == 1:
        dist.send(torch.ones(4), 0)
        dist.send(torch.ones(9), 0)
        for _ in range(2):
            dist.send(torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fnuz), 0)
    dist.barrier()


def weft_coalesced_lists():
    """coalesced operations refuse lists of different lengths, and a wrong entry, before anything is sent"""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    one, many = torch.ones(2), torch.zeros(2 * size)
    if rank == 0:
        for text, call in (("2 outputs, 1 inputs", lambda: group.allgather_into_tensor_coalesced([many, many], [one])),
                           ("1 outputs, 2 inputs", lambda: group.reduce_scatter_tensor_coalesced([one], [many, many])),
                           ("size", lambda: group.allgather_into_tensor_coalesced([many, one], [one, one])),
                           ("size", lambda: group.reduce_scatter_tensor_coalesced([one, many], [many, many]))):
            expect_refused(text, call)
    group.allgather_into_tensor_coalesced([many], [one]).wait()
    expect(bool((many == 1).all()), "the operations of all ranks still match", many)


def weft_shared_elements():
    """an output whose elements share memory is refused before anything is sent, and an input may be one"""
    rank, size = dist.get_rank(), dist.get_world_size()
    shared = torch.full((1,), 2.0).expand(3)
    if rank == 0:
        for call in (lambda: dist.all_reduce(shared), lambda: dist.all_gather([shared] * size, torch.ones(3)),
                     lambda: dist.group.WORLD.allreduce_coalesced([torch.ones(2), shared]),
                     lambda: dist.all_gather_into_tensor(torch.ones(1).expand(3 * size), torch.ones(3))):
            expect_refused("share memory", call)
    gathered = torch.zeros(3 * size)
    dist.all_gather_into_tensor(gathered, shared)
    expect(bool((gathered == 2).all()), "gathered", gathered)
    value = shared if rank == 0 else torch.zeros(3)
    dist.broadcast(value, 0)
    expect(value.tolist() == [2.0] * 3, "broadcast", value)


def weft_forked_group():
    """a forked child creates groups of its own while the parent has one, and so does its own child"""
    from weftsync.torch import _bootstrap
    from weftsync.torch._group import ProcessGroupWeft

    def sums(depth):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                group, value = ProcessGroupWeft(dist.HashStore(), 0, 1, timedelta(seconds=30)), torch.ones(3)
                group.allreduce([value]).get_future().wait()
                expect_raises("a forked child cannot use its parent's", dist.all_reduce, value)
                group.shutdown()
                code = 0 if value.tolist() == [1.0] * 3 and (depth == 0 or sums(depth - 1)) else 2
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    with _bootstrap._lock:  # as another thread of the parent might hold it
        expect(sums(1), "the child's all-reduce")
    value = torch.ones(2)
    dist.all_reduce(value)
    expect(value.tolist() == [float(dist.get_world_size())] * 2, "the parent's group", value)


def weft_interrupted_creation():
    """Ctrl-C ends the creation of a group and a monitored_barrier whose other ranks do not come, within seconds"""
    from weftsync.torch._group import ProcessGroupWeft
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.get_group_store()
    dist.barrier()
    for call in (lambda: ProcessGroupWeft(dist.PrefixStore("interrupted/", store), rank, size, timedelta(seconds=15)),
                 lambda: dist.group.WORLD.monitored_barrier(timedelta(seconds=15))):
        if rank == 0:
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            timer, begin = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)), time.monotonic()
            timer.start()
            try:
                call()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("expected KeyboardInterrupt")
            finally:
                signal.signal(signal.SIGINT, before)
                timer.join()
            expect(time.monotonic() - begin < 8, "the time until the interrupt", time.monotonic() - begin)
        dist.barrier()


def weft_long_timeouts():
    """timeouts as long as timedelta has them work for groups, operations and waits"""
    from weftsync.torch._group import ProcessGroupWeft
    rank, size, longest = dist.get_rank(), dist.get_world_size(), timedelta.max
    store = dist.PrefixStore("long/", dist.group.WORLD.get_group_store())
    if rank == 1:
        time.sleep(0.3)
    group, value = ProcessGroupWeft(store, rank, size, longest), torch.ones(2)
    group.set_timeout(longest)
    if rank == 1:
        time.sleep(0.3)
    work = group.allreduce([value])
    work.wait(longest)
    expect(value.tolist() == [float(size)] * 2, "sum", value)
    if rank == 1:
        time.sleep(0.3)
    group.barrier(timeout=longest).wait()
    group.monitored_barrier(longest)
    if rank < 2:
        message = group.recv([value], 1, 0) if rank == 0 else group.send([torch.zeros(2)], 0, 0)
        message.wait(longest)
    group.shutdown()


def weft_failed_work_is_freed():
    """a Work that has failed is freed with its last reference, without the garbage collector"""
    rank = dist.get_rank()
    gc.collect()
    gc.disable()
    try:
        for ask in (lambda work: expect_raises("recv", work.wait), lambda work: expect_raises("recv", work.result)):
            if rank == 0:
                value = torch.zeros(3)
                work = dist.irecv(value, 1)
                expect_raises("recv", work.wait)
                ask(work)
                expect(isinstance(work.exception(), RuntimeError), "exception", work.exception())
                freed = weakref.ref(work)
                del value, work
                expect(freed() is None, "the Work is free")
            elif rank == 1:
                dist.send(torch.ones(2), 0)
    finally:
        gc.enable()
    dist.barrier()


def weft_interrupted_future():
    """Ctrl-C between the completion of a Work and that of its future does not lose the future's result"""
    value = torch.ones(2)
    work = dist.all_reduce(value, async_op=True)
    fulfil, calls = work._fulfil, []

    def interrupted(future):
        calls.append(future)
        if len(calls) == 1:
            raise KeyboardInterrupt
        fulfil(future)

    work._future, work._fulfil = torch.futures.Future(), interrupted
    try:
        work.wait()
    except KeyboardInterrupt:
        pass
    expect(len(calls) == 1, "interrupted", calls)
    expect(work.get_future().done() and work.get_future().value()[0] is value, "the future's result")


def weft_interrupted_watch():
    """Ctrl-C before or after a Work is watched lets it be watched later, once"""
    from weftsync.torch import _threads
    watch = _threads.watch
    for early in (True, False):
        def interrupted(handle, job, early=early):
            if not early:
                watch(handle, job)
            raise KeyboardInterrupt

        work = dist.all_reduce(torch.ones(2), async_op=True)
        _threads.watch = interrupted
        try:
            work.get_future()
        except KeyboardInterrupt:
            pass
        finally:
            _threads.watch = watch
        end = time.monotonic() + 20
        while not work.get_future().done() and time.monotonic() < end:
            time.sleep(0.001)
        expect(work.get_future().done(), "the future is complete", early)


def weft_submit_in_destructor():
    """a destructor that submits a job while this thread submits one does not deadlock"""
    from weftsync.torch import _threads
    done = threading.Event()

    def nested():
        with _threads._lock:  # where the garbage collector may run a destructor
            _threads.submit(done.set)

    thread = threading.Thread(target=nested, daemon=True)
    thread.start()
    try:
        expect(done.wait(10), "the job ran")
    finally:
        if thread.is_alive():
            _threads._forget()  # later tests need the threads


def weft_sparse_released():
    """the result of a sparse sum is released if the Work is dropped, and if its copy fails"""
    from weftsync.torch import _sparse
    rank, release, released = dist.get_rank(), _sparse.lib.sparse_release, []

    def counted(result):
        released.append(bool(result.values))
        return release(result)

    def no_memory(*_, **__):
        raise RuntimeError("no memory")

    options = dist.AllreduceOptions()
    options.asyncOp = False
    _sparse.lib.sparse_release = counted
    try:
        for drop in (True, False):
            tensor = torch.sparse_coo_tensor([[rank]], [1.0], (100,))
            work = dist.group.WORLD.allreduce([tensor], options)
            if drop:
                work._request.wait()
            else:
                empty, torch.empty = torch.empty, no_memory
                try:
                    expect_raises("no memory", work.wait)
                finally:
                    torch.empty = empty
            del work, tensor
            gc.collect()
            dist.barrier()  # its start drops the complete request
            dist.barrier()
            gc.collect()
            expect(released == [True], "released once", drop, released)
            released.clear()
    finally:
        _sparse.lib.sparse_release = release


def weft_after_failure():
    """a call after a failure says that the communicator failed earlier, and what to do"""
    group = dist.new_group()
    group.set_timeout(timedelta(seconds=1))
    if dist.get_rank() == 0:
        error = expect_raises("timed out", dist.all_reduce, torch.ones(2), group=group)
        expect("failed earlier" not in str(error), "the first failure", error)
        for call in (lambda: dist.broadcast(torch.ones(2), 0, group), lambda: dist.isend(torch.ones(2), 1, group)):
            error = expect_raises("the communicator failed earlier", call)
            expect("create the process group anew" in str(error) and "all_reduce" in str(error), "the text", error)
            expect(error.__cause__ is not None, "the cause", error)
    dist.barrier()


def weft_split_sizes():
    """all_to_all_single names split sizes that are negative, and tensors without dimensions"""
    size = dist.get_world_size()
    if dist.get_rank() == 0:
        value, scalar, sizes = torch.zeros(size), torch.zeros(()), [1] * size
        wrong = [-1, size + 1, *[0] * (size - 2)]
        group = dist.group.WORLD
        expect_refused("no dimensions", lambda: group.alltoall_base(value, scalar, sizes, sizes))
        expect_refused("no dimensions", lambda: group.alltoall_base(scalar, value, sizes, sizes))
        expect_refused("-1 for rank 0", lambda: group.alltoall_base(value, value, sizes, wrong))
        expect_refused("-1 for rank 0", lambda: group.alltoall_base(value, value, wrong, sizes))
    dist.barrier()


def weft_wait_timeout():
    """the timeout of Work.wait says what was waited for, and that the operation continues"""
    rank, value = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        work = dist.irecv(value, 1, tag=4)
        error = expect_raises("Timed out waiting 100ms", work.wait, timedelta(seconds=0.1))
        expect("recv from rank 1 with tag 4" in str(error) and "the operation continues" in str(error), "text", error)
        expect(str(error).lower().count("timed out") == 2, "said once in each of the two spellings", error)
    dist.barrier()
    if rank == 0:
        work.wait()
        expect(value.item() == 1, "received", value)
    elif rank == 1:
        dist.send(torch.ones(1), 0, tag=4)


def weft_store_keys():
    """monitored barriers and creations of groups delete their keys from the store, except the last round's"""
    from weftsync.torch._group import ProcessGroupWeft
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.get_group_store()

    def keys():
        dist.barrier()
        found = store.num_keys()
        dist.barrier()
        return found

    dist.group.WORLD.monitored_barrier()
    before = keys()
    for _ in range(5):
        dist.group.WORLD.monitored_barrier()
    expect(keys() == before, "keys of monitored barriers", before, keys())
    ProcessGroupWeft(dist.PrefixStore("keys/", store), rank, size, timedelta(seconds=60)).shutdown()
    created = keys() - before
    expect(created <= size, "keys of a group", created)


def weft_list_sizes():
    """scatter, gather and reduce_scatter refuse lists whose sizes do not fit, before data moves"""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        uneven = [torch.zeros(n + 2) for n in range(size)]
        for text, call in (("at index 1", lambda: dist.scatter(torch.zeros(2), uneven, 0)),
                           ("at index 1", lambda: dist.gather(torch.zeros(2), uneven, 0)),
                           ("of the output", lambda: dist.reduce_scatter(torch.zeros(5), uneven))):
            try:
                call()
            except ValueError as error:
                expect("invalid tensor size " + text in str(error), "text", error)
            else:
                raise AssertionError("not refused: " + text)
    dist.barrier()


def weft_uneven():
    """all_gather and reduce_scatter take lists of different sizes"""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [torch.zeros(n + 1) for n in range(size)]
    dist.all_gather(gathered, torch.full((rank + 1,), float(rank)))
    expect(all(bool((one == n).all()) for n, one in enumerate(gathered)), "all_gather", gathered)
    mine = torch.zeros(rank + 2)
    dist.reduce_scatter(mine, [torch.full((n + 2,), float(n)) for n in range(size)])
    expect(bool((mine == rank * size).all()), "reduce_scatter", mine)


def weft_types():
    """reductions of bool, integers and complex numbers, and the operations that only some backends have"""
    rank, size = dist.get_rank(), dist.get_world_size()
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags)
    expect(flags.tolist() == [True, False, True], "bool", flags)
    numbers = torch.tensor([rank + 1j])
    dist.all_reduce(numbers)
    expect(numbers.item() == sum(range(size)) + size * 1j, "complex", numbers)
    mean = torch.tensor([rank * 10])
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    expect(mean.item() == sum(range(size)) * 10 // size, "integer mean", mean)
    if rank == 0:  # alone: nothing is sent
        for dtype in (torch.uint16, torch.uint32, torch.uint64):
            expect_raises("ReduceOp.AVG", dist.all_reduce, torch.ones(2, dtype=dtype), dist.ReduceOp.AVG)
    scaled = torch.ones(2)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    expect(scaled.tolist() == [0.5 * size] * 2, "premul_sum", scaled)


def weft_profiler():
    """a profiler shows the operations by name"""
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(7))
    found = [event for event in profile.function_events if event.name == "weft:all_reduce"]
    expect(len(found) == 1 and found[0].input_shapes == [[7]], "profiler range", profile.function_events)


def weft_ddp():
    """DistributedDataParallel gives the bits that it gives over gloo, for two ranks"""
    gloo = dist.new_group(backend="gloo")
    losses = []
    for group in (None, gloo):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4))
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
        torch.manual_seed(dist.get_rank())
        for _ in range(5):
            optimizer.zero_grad()
            ddp(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()
        losses.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    if dist.get_world_size() == 2:
        expect(torch.equal(*losses), "equal bits", (losses[0] - losses[1]).abs().max())
    expect(torch.allclose(*losses), "equal values", (losses[0] - losses[1]).abs().max())


def weft_functional():
    """functional collectives, which call the process group from C++"""
    import torch.distributed._functional_collectives as functional
    size = dist.get_world_size()
    total = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    expect(total.tolist() == [float(size)] * 4, "all_reduce", total)
    gathered = functional.all_gather_tensor(torch.full((2,), float(dist.get_rank())), 0, dist.group.WORLD)
    expect(gathered.tolist() == [float(n) for n in range(size) for _ in range(2)], "all_gather", gathered)
    part = functional.reduce_scatter_tensor(torch.ones(size), "sum", 0, dist.group.WORLD)
    expect(part.tolist() == [float(size)], "reduce_scatter", part)


def weft_split():
    """a process group splits into groups of some of its ranks"""
    rank, size = dist.get_rank(), dist.get_world_size()
    for ranks in ([0], list(range(size))):
        part = dist.group.WORLD.split_group(ranks)
        expect((part is None) == (rank not in ranks), "membership", part)
        if part is not None:
            value = torch.ones(2)
            part.allreduce([value]).wait()
            expect(value.tolist() == [float(len(ranks))] * 2 and part.rank() == rank, "all-reduce", value)
            part.shutdown()


def weft_device_backends():
    """a backend for each device is refused before torch 2.14, which would use only the first"""
    for backend in ("cpu:weft,cuda:nccl", "cpu:gloo,cuda:weft"):
        try:
            dist.new_group(backend=backend)
        except ValueError as error:
            expect("2.14" in str(error), "names the version", error)
        else:
            raise AssertionError(f"{backend} was accepted")
    group = dist.new_group(backend="cpu:weft")
    value = torch.ones(2)
    dist.all_reduce(value, group=group)
    expect(value.tolist() == [float(dist.get_world_size())] * 2, "cpu:weft", value)


# Methods that torch 2.14.1 calls from C++ (torch/csrc/distributed/c10d/py/PyBackend.hpp), and their arguments' number.
BACKEND_CALLS = {"broadcast": 2, "allreduce": 2, "allreduce_sparse": 2, "allreduce_coalesced": 2, "reduce": 2,
                 "allgather": 3, "all_gather_single": 3, "allgather_coalesced": 3, "all_gather_single_coalesced": 3,
                 "gather": 3, "scatter": 3, "reduce_scatter": 3, "reduce_scatter_single": 3,
                 "reduce_scatter_single_coalesced": 3, "all_to_all_single": 5, "alltoall": 3, "send": 3, "recv": 3,
                 "recv_anysource": 2, "barrier": 1, "start_coalescing": 0, "end_coalescing": 0, "getBackendName": 0,
                 "_get_sequence_number_for_group": 0, "_set_sequence_number_for_group": 0, "set_timeout": 1,
                 "abort": 0, "shutdown": 0, "monitored_barrier": 2}


def weft_signatures():
    """the class for torch 2.14 takes the calls of torch 2.14.1 (the class itself is not run)"""
    from weftsync.torch import _group
    made = _group.backend_class()
    for name, count in BACKEND_CALLS.items():
        function = next((vars(one)[name] for one in made.__mro__ if name in vars(one)
                         and not one.__module__.startswith(("torch", "pybind11"))), None)
        expect(function is not None, "the class has its own method", name)
        inspect.signature(function).bind(None, *[None] * count)
    for name in ("supports_splitting", "supports_coalescing"):
        expect(isinstance(getattr(made, name), property), "a property", name)


CASES = {name: value for name, value in list(globals().items()) if name.startswith("weft_")}
