"""A case whose ranks end at different steps: PyTorch's Join context compared with weft_reducer_join.

PyTorch's context occupies ranks that have joined, so DDP runs its whole training first. Then Weft trains from
the states in which DDP's steps began. Then all is compared, on the ranks that took part in a step. Threads:
the thread that trains.
"""
import copy

import torch.distributed as dist

from case import STEPS, Case, descend, digest

# The number of steps of each rank, by the number of ranks. The last rank does not always end last, and some
# have no steps.
STEPS_OF = {2: (2, STEPS), 3: (STEPS, 0, 2), 4: (1, STEPS, 0, 3)}


class JoinedCase(Case):
    def run(self):
        steps = STEPS_OF[self.comm.size]
        mine = steps[self.comm.rank]
        trained = self.train_ddp(range(mine))
        ours = [self.train_weft(step, state, batches) for step, (state, batches, _) in enumerate(trained)]
        descend(self.ours)
        self.join(steps, mine)
        for step in range(STEPS):
            self.batches(step)
            if step < mine:
                state, batches, theirs = trained[step]
                contributions = self.gather(self.contribution(state, batches))
                self.compare(step, ours[step], theirs, contributions)
            else:
                self.gather([[None]] * len(list(self.ours.parameters())))
                self.compare(step, None, None, None)
        self.end()
        return self.problems

    def train_ddp(self, steps):
        """Train with DDP. Return for each step the state in which it began, its batches and its gradients."""
        done = []
        used = self.ddp.reducer._get_local_used_map()
        if used is not None:
            # DDP does not initialise this map, and a rank that joins before its first step votes with it. A
            # -1 there would cancel another rank's 1, so that a parameter that only that rank used would count
            # as unused.
            used.zero_()
        with self.ddp.join(divide_by_initial_world_size=self.mode.initial):
            for step in steps:
                state, batches = copy.deepcopy(self.theirs.state_dict()), self.batches(step)
                self.mode.clear(self.ddp)
                self.mode.active = self.active(step)
                self.mode.step_ddp(self.ddp, batches)
                done.append((state, batches, gradients(self.theirs)))
                descend(self.theirs)
        return done

    def train_weft(self, step, state, batches):
        self.batches(step)
        self.ours.load_state_dict(state)
        self.synced.zero_grad()
        self.mode.step_weft(self.synced, batches)
        return gradients(self.ours)

    def join(self, steps, mine):
        """Join until all ranks have joined; then broadcast the state of the last active rank."""
        joined, last = self.synced.reducer.join(), steps.index(STEPS)
        if (joined.steps, joined.last_active) != (STEPS - mine, last):
            self.problems.append(f"joined: {joined}, but rank {last} is the last after {STEPS - mine} more steps")
        states = [None] * self.comm.size
        before = digest(self.ours.state_dict().values())
        self.synced.broadcast_state(joined.last_active)
        dist.all_gather_object(states, (before, digest(self.ours.state_dict().values())))
        if {after for _, after in states} != {states[last][0]}:
            self.problems.append("the state is not the last active rank's on all")

    def active(self, step):
        return sum(count > step for count in STEPS_OF[self.comm.size])

    def difference(self, step, ours, theirs, parts):
        # Ranks that have joined DDP still vote as in their last step, so an unused parameter's gradient is
        # zeros there.
        if ours is None and theirs is not None and all(part is None for part in parts):
            return "no rank has used it, theirs is not zero" if theirs.any() else ""
        return super().difference(step, ours, theirs, parts)

    def divisor(self, step):
        return self.comm.size if self.mode.initial else self.active(step)


def gradients(model):
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
