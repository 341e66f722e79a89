"""One forward of a rank's program, and its backward: the `run` of emitted code.

The methods are described in `docs/reference/emitted-program.md`. Between calls, values are detached tensors
whose `requires_grad` says whether a gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...as_python import Modules, running
from ...errors import RuntimeFault
from ..communication.local_work import BACKWARD, FORWARD, LocalWork
from ..programs.program import Block, name_of_call
from ..shards.copies import Copy
from ..shards.shards import Leaves
from . import collectives
from .away import Away, KeptAway
from .buckets import Bucket, gradient_dtype, gradient_of
from .calls import Saved, call_forgetting, call_giving, call_in_halves, call_saving, call_sending, match
from .exchange import Part, exchange
from .gathers import Gathering, Scattering
from .halves import Left, first_half
from .kinds import require_kind
from .profiles import spanned
from .randomness import Masks
from .rows import bytes_of
from .worker import Worker

Sizes = Sequence[int] | None
Factors = Sequence[Sequence[int]] | None
Issued = tuple[str, int, int]
Ends = list[Callable[[], object]]

# So many gradients may be on their way to the host.
HANDED = 16

_current: ContextVar[Run] = ContextVar("shardwright_run")


def current_run() -> Run:
    """The run whose `call` is executing, backward included."""
    run = _current.get(None)
    if run is None:
        raise RuntimeFault("SW0711", "a random operator is called outside a program")
    return run


class _Executing:
    """While code of a run is called: a `function`, or its backward from some edges of its graph. Entered at
    each call, so it is no generator."""

    __slots__ = ("_direction", "_modules", "_run", "_token")

    def __init__(
        self,
        run: Run,
        direction: str,
        number: int,
        function: Callable[..., Any] | None = None,
        edges: Sequence[GradientEdge] = (),
    ):
        self._run, self._direction, self._modules = run, direction, running(run._modules)
        if run.work is not None:
            run.work.begin(direction, run.batch, number, function, edges)

    def __enter__(self) -> None:
        self._token = _current.set(self._run)
        self._modules.__enter__()

    def __exit__(self, *failed: object) -> None:
        if self._run.work is not None:
            self._run.work.end(self._direction)
        self._modules.__exit__()
        _current.reset(self._token)


class Run:
    def __init__(
        self,
        worker: Worker,
        masks: Masks,
        issued: list[Issued],
        *,
        modules: Modules | None = None,
        saving: bool,
        step: object = None,
        batch: int = 0,
        leaves: Leaves | None = None,
    ):
        """Runs of one `step` follow each other without a change of parameters. `leaves` are given of a step
        that is not the latest."""
        self.worker, self.comm = worker, worker.comm
        # The micro-batch, by which messages to other blocks are told apart.
        self.batch = batch
        self.masks, self._modules = masks, modules
        # What was really communicated: kind, grouping or table, and the bytes that this rank gave.
        self.issued = issued
        # What looks at the clock around calls, while the step is recorded.
        self.work: LocalWork | None = getattr(issued, "work", None)
        self._step = object() if step is None else step
        self.leaves = worker.shards.leaves(self._step) if leaves is None else leaves
        # By block: between the forwards of two, those of other micro-batches may write into buffers.
        self._leaves: dict[int, Leaves] = {}
        self._saving = saving
        # The tables that the code which is running has received.
        self._received: list[int] = []
        self._saved: dict[int, Saved] = {}
        # Of calls whose gradients of leaves are yet to be computed.
        self._left: dict[int, Left | None] = {}
        # End messages that run while the second half of a backward computes.
        self._in_flight: Ends = []
        self._kept: dict[int, tuple[Tensor, ...] | KeptAway] = {}
        # The memory of what it reads and has anyway, what is gathered apart.
        self._stays: frozenset[int] | None = None
        self._inputs: Sequence[Tensor] = ()
        self._state = "new"
        self._buckets: list[Bucket] = []
        self._scatterings: list[Scattering] = []
        # Gradients of shards on their way to the host.
        self._handed: list[tuple[int, Tensor, Any]] = []
        self._reductions = 0
        # By block, the positions of the outputs that its forward gave.
        self._given: dict[int, list[int]] = {}
        self._versions: list[int] = []
        # The blocks whose backward has run.
        self._ended: set[int] = set()
        # What is gathered that each call reads.
        self._read: dict[int, frozenset[int]] = {}
        # What a profiler shows of calls, and of the code that ran last.
        self.spans: dict[str, str] = {}
        self.at = ""

    # What the module calls.

    def begin(self) -> None:
        """What a step begins with."""
        if self.worker.code.begin is not None:
            self.worker.code.begin(self, self.leaves.tree, self.worker.constants)

    def forward(self, inputs: Sequence[Tensor]) -> list[Any]:
        """All blocks, in turn. Outputs in the graph's order; `None` for those that do not leave."""
        outputs: list[Any] = [None] * len(self.worker.role.outputs)
        for block in self.worker.code.blocks:
            outputs = self.forward_of(block, inputs, outputs)
        return outputs

    def forward_of(self, block: Block, inputs: Sequence[Tensor], outputs: list[Any]) -> list[Any]:
        """One block's, given the outputs of those before it; `inputs` are those of all."""
        worker, self._inputs = self.worker, inputs
        if self._leaves:
            self.leaves = worker.shards.leaves(self._step)
        self._leaves[block.number] = self.leaves
        self._versions = worker.shards.versions()
        self._received = []
        with torch.enable_grad() if self._saving else torch.no_grad(), _no_autocast(self.comm.device):
            given = block.forward(self, self.leaves.tree, worker.constants, *inputs[block.inputs])
        worker.received.setdefault(block.forward, tuple(self._received))
        self._state = "forwarded"
        present = [(at, value) for at, value in enumerate(_listed(given, len(outputs))) if value is not None]
        self._given[block.number] = [at for at, _ in present]
        made = dict(present)
        return [made.get(at, before) for at, before in enumerate(outputs)]

    def backward(self, seeds: Sequence[Tensor], *, last: bool = True) -> dict[int, Tensor]:
        """The gradients of inputs that have one, by the inputs' positions.

        In the last micro-batch of a step the gradients of parameters become whole and move to the
        shards, else they stay local.
        """
        [block] = self.worker.code.blocks
        if block.backward_weights is None:
            gradients = self.backward_of(block, seeds, last=last)
        else:
            gradients = self.inputs_of(block, seeds)
            self.weights_of(block, last=last)
        if last:
            self.finish()
        return gradients

    def backward_of(self, block: Block, seeds: Sequence[Tensor], *, last: bool) -> dict[int, Tensor]:
        gradients = self._back(block, block.backward, last, *self._scaled(seeds))
        self._end_backward(block)
        return self._of_inputs(gradients)

    def inputs_of(self, block: Block, seeds: Sequence[Tensor]) -> dict[int, Tensor]:
        """The first half of a block's backward."""
        gradients = self._back(block, block.backward_inputs, *self._scaled(seeds))
        self._state = "forwarded"
        return self._of_inputs(gradients)

    def weights_of(self, block: Block, *, last: bool) -> None:
        """The second half: gradients of parameters."""
        self._back(block, block.backward_weights, last)
        self._end_backward(block)

    def _scaled(self, seeds: Sequence[Tensor]) -> Sequence[Tensor]:
        scaling = self.worker.scaling
        return scaling.scaled(seeds) if scaling else seeds

    def _back(self, block: Block, code: Callable[..., Any] | None, *given: Any) -> Any:
        self._begin_backward()
        self.leaves = self._leaves.get(block.number, self.leaves)
        if code is None:
            raise without_backward()
        self._received = []
        with torch.no_grad(), _no_autocast(self.comm.device):
            self.worker.shards.bring_together(self.leaves)
            gradients = code(self, self.leaves.tree, self.worker.constants, *given)
            self._settle()
        self.worker.received.setdefault(code, tuple(self._received))
        return gradients

    def _end_backward(self, block: Block) -> None:
        self._ended.add(block.number)
        open_ = any(not self._has_ended(one.number, one.trains) for one in self.worker.code.blocks)
        self._state = "forwarded" if open_ else "done"

    def _has_ended(self, block: int, trains: bool) -> bool:
        """A block without a backward may run its forward after the backwards of others."""
        return block in self._ended if trains else block in self._given

    def _of_inputs(self, gradients: Any) -> dict[int, Tensor]:
        worker = self.worker
        positions = [worker.program.tensors[number].position for number in worker.role.gradients]
        return dict(zip(positions, _listed(gradients, len(positions)), strict=True))

    def finish(self, *, goes_on: bool = False) -> None:
        """The end of a step: gradients are there, and move to the shards. While another one `goes_on` its
        messages are on their way."""
        worker = self.worker
        with torch.no_grad(), _no_autocast(self.comm.device):
            worker.shards.bring_together(self.leaves)
            if worker.code.end is not None:
                worker.code.end(self, self.leaves.tree, worker.constants)
                self._settle()
            if not goes_on:
                worker.mail.clear()
            if worker.scaling:
                self._unscale(worker.scaling.scale)
            worker.shards.take_gradients(self.leaves)

    def seeded(self, block: Block) -> list[int]:
        """The positions of the outputs for which the backward of a block takes a gradient."""
        outputs = self.worker.role.outputs
        given = self._given.get(block.number, [])
        return [at for at in given if (output := outputs[at]) is not None and output.grad]

    @property
    def is_done(self) -> bool:
        """Whether all its blocks have run, and their backwards."""
        return self._state == "done"

    # What emitted code calls.

    @spanned
    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        at: int | None = None,
        recompute: bool = False,
        forget: bool = False,
        offload: bool = False,
    ) -> Any:
        first, last = self._numbers(function, at)
        number = first if recompute else last
        read = self._await(args)
        if self.worker.local:
            function = self.worker.local.compiled(function)
        with _Executing(self, FORWARD, number, function):
            if not self._saving:
                return self._own(function(*args), read)
            needs = self.worker.role.grads.get(number)
            if recompute:
                return self._own(call_forgetting(function, args, self.leaves.index, needs), read)
            given = (function, args, self.leaves.index, needs)
            halves = self._gathered(read) if self.worker.splits(number) else None
            if offload:
                results, saved = call_sending(*given, self._away(read), forget=forget, halves=halves)
            elif forget:
                results, saved = call_giving(*given, halves=halves)
            else:
                results, saved = call_saving(*given) if halves is None else call_in_halves(*given, halves)
            self._saved[number] = saved
            self._read[number] = read
            return self._own(results, read)

    def keep(self, number: int, *xs: Tensor, offload: bool = False) -> None:
        """For a later code, which takes them."""
        if self._saving or len(self.worker.code.blocks) > 1:
            on_host = offload and self._saving
            self._kept[number] = KeptAway(self._away(frozenset()), xs) if on_host else xs

    def take(self, number: int) -> Any:
        kept = self._kept.pop(number)
        values = kept.take() if isinstance(kept, KeptAway) else kept
        return values[0] if len(values) == 1 else values

    def fetch(
        self, *, call: Callable[..., Any] | None = None, at: int | None = None, keep: int | None = None
    ) -> None:
        """What is on the host of a call, or is kept there; it is here when that is read."""
        sent = self._saved[self._last(call, at)] if call else self._kept[keep]  # type: ignore[index]
        assert not isinstance(sent, tuple) and sent.away is not None
        sent.away.fetch()

    @spanned
    def grad(
        self,
        function: Callable[..., Any],
        *grads: Tensor | None,
        at: int | None = None,
        again: Sequence[Tensor] = (),
    ) -> Any:
        number = self._last(function, at)
        return self._whole(number, self._returned(number), grads, again)

    @spanned
    def grad_inputs(
        self,
        function: Callable[..., Any],
        *grads: Tensor | None,
        at: int | None = None,
        again: Sequence[Tensor] = (),
    ) -> Any:
        """The first half of a `grad`."""
        number = self._last(function, at)
        saved = self._returned(number)
        if saved.boxes is None:
            self._left[number] = None
            return self._whole(number, saved, grads, again)
        if saved.forgotten:
            saved.forgotten.give(again)
        local = self.worker.local
        edges, given = match(saved, grads)
        executing = _Executing(self, BACKWARD, number, edges=edges)
        with executing, local.first_half() if local else nullcontext():
            gradients, left = first_half(saved.entries, edges, given, saved.boxes)
        for slot, grad in zip(saved.slots, gradients, strict=True):
            slot.grad = grad
        saved.edges, saved.entries = [], []
        self._left[number] = left
        return _taken(saved)

    @spanned
    def grad_weights(self, function: Callable[..., Any], at: int | None = None) -> None:
        """The second half of a `grad`, and the end of the message that runs meanwhile."""
        number = self._last(function, at)
        left = self._left.pop(number)
        if left is not None:
            with _Executing(self, BACKWARD, number):
                left.backward()
        while self._in_flight:
            self._in_flight.pop()()

    @spanned
    def all_reduce(
        self, x: Tensor | Sequence[Tensor], group: int, op: str = "sum", async_op: bool = False
    ) -> Any:
        """A tuple for a list of tensors."""
        if isinstance(x, Tensor):
            return self._all_reduce([x], group, op, async_op)[0]
        return tuple(self._all_reduce(x, group, op, async_op))

    @spanned
    def all_gather(
        self,
        x: Tensor,
        group: int,
        dim: int,
        sizes: Sizes = None,
        factors: Factors = None,
    ) -> Tensor:
        return self._along(collectives.all_gather, x, group, dim, sizes, factors)

    @spanned
    def reduce_scatter(
        self,
        x: Tensor,
        group: int,
        dim: int,
        sizes: Sizes = None,
        factors: Factors = None,
        async_op: bool = False,
    ) -> Tensor:
        later = self._later(async_op)
        return self._along(collectives.reduce_scatter, x, group, dim, sizes, factors, later=later)

    @spanned
    def all_to_all(
        self,
        x: Tensor,
        group: int,
        send: int,
        receive: int,
        send_sizes: Sizes = None,
        receive_sizes: Sizes = None,
        send_factors: Factors = None,
        receive_factors: Factors = None,
    ) -> Tensor:
        ranks = self._in_group("all_to_all", group, bytes_of(x))
        with torch.no_grad():
            y = collectives.all_to_all(
                self.comm,
                x,
                ranks,
                (send, send_sizes, send_factors),
                (receive, receive_sizes, receive_factors),
            )
        return self._marked(y, x.requires_grad)

    @spanned
    def exchange(self, number: int, *xs: Tensor) -> Any:
        table = self.worker.program.exchanges[number]
        targets = self._exchange("exchange", number, xs)
        needed = any(x.requires_grad for x in xs) if xs else table.grad
        marked = tuple(self._marked(target, needed) for target in targets)
        return marked[0] if len(marked) == 1 else marked

    @spanned
    def send(self, number: int, *xs: Tensor) -> None:
        """For a block that runs later, here or elsewhere; nobody waits."""
        part = self.worker.part(number)
        self._compare(number, part, xs, None)
        dtype = self.worker.exchange_dtype(number)
        self.issued.append(("send", number, part.bytes_sent(self.comm.rank, dtype.itemsize)))
        with torch.no_grad():
            self.worker.mail.send(part, number, self.batch, xs)

    @spanned
    def receive(self, number: int) -> Any:
        worker = self.worker
        self._received.append(number)
        dtype = worker.exchange_dtype(number)
        with torch.no_grad():
            targets = worker.mail.receive(worker.part(number), number, self.batch, dtype)
        needed = worker.program.exchanges[number].grad and torch.is_grad_enabled()
        marked = tuple(self._marked(target, needed) for target in targets)
        return marked[0] if len(marked) == 1 else marked

    @spanned
    def reduce_gradients(self, group: int, leaves: Sequence[Tensor]) -> None:
        ranks = self._in_group("reduce_gradients", group, sum(map(self._sent, leaves)))
        self._reductions += 1
        if any(bucket.has(leaf) for bucket in self._buckets for leaf in leaves):
            self._settle()
        dtypes = list(dict.fromkeys(map(gradient_dtype, leaves)))
        for dtype in dtypes if len(ranks) > 1 else []:
            of_dtype = [leaf for leaf in leaves if gradient_dtype(leaf) == dtype]
            sent = self.worker.reduce
            self._buckets.append(Bucket(self.comm, of_dtype, ranks, self._reductions, self.worker.kept, sent))

    @spanned
    def exchange_gradients(self, number: int, leaves: Sequence[Tensor], shards: Sequence[int]) -> None:
        self._settle()
        reduce = self.worker.reduce
        grads = [gradient_of(leaf).to(reduce or gradient_dtype(leaf)) for leaf in leaves]
        targets = self._exchange("exchange_gradients", number, grads, reduce)
        for shard, target in zip(shards, targets, strict=True):
            # A target may be a view of a message; a shard's gradient is its own.
            self._arrived(shard, target, is_fresh=False)

    @spanned
    def gather(self, group: int, places: Sequence[Any]) -> None:
        """Each place is a leaf or holds some. They are there at the first call that reads them."""
        copies = self._copies(places)
        sent = sum(copy.shard.data.numel() * copy.dtype.itemsize for copy in copies)
        ranks = self._in_group_of_several("gather", group, sent)
        with torch.no_grad():
            for dtype in dict.fromkeys(copy.dtype for copy in copies):
                of_dtype = [copy for copy in copies if copy.dtype == dtype]
                self.worker.coming.append(Gathering(self.comm, of_dtype, ranks, self.worker.host))

    @spanned
    def release(self, places: Sequence[Any]) -> None:
        for copy in self._copies(places):
            self._arrive(frozenset(map(id, copy.leaves)))
            copy.release()

    @spanned
    def scatter_gradients(self, group: int, places: Sequence[Any]) -> None:
        leaves = self._leaves_of_copies(places)
        sent = sum(self._sent(leaf) for _, leaf in leaves)
        ranks = self._in_group_of_several("scatter_gradients", group, sent)
        dtypes = [self.worker.reduce or gradient_dtype(leaf) for _, leaf in leaves]
        for dtype in dict.fromkeys(dtypes):
            of_dtype = [leaf for leaf, leaf_dtype in zip(leaves, dtypes, strict=True) if leaf_dtype == dtype]
            self._collect(1)
            self._scatterings.append(Scattering(self.comm, of_dtype, ranks, dtype))

    @spanned
    def part_gradients(self, places: Sequence[Any]) -> None:
        """Those that every rank of the group has all of."""
        for copy, leaf in self._leaves_of_copies(places):
            self._arrived(copy.at, copy.own_part(gradient_of(leaf)), is_fresh=False)

    @spanned
    def reduce_shards(self, group: int, places: Sequence[Any]) -> None:
        self._settle()
        held = self.worker.shards
        numbers = [copy.at for copy in self._copies(places)]
        grads = [held.arrived.get(at, torch.zeros_like(held.held[at].data)) for at in numbers]
        here = [
            self.worker.host.bring(x) if held.held[at].tensor.on_host else x
            for at, x in zip(numbers, grads, strict=True)
        ]
        wire = [grad.to(self.worker.reduce or grad.dtype) for grad in here]
        ranks = self._in_group("reduce_shards", group, sum(grad.nbytes for grad in wire))
        summed = collectives.all_reduce_together(self.comm, wire, ranks, "sum")
        for at, grad in zip(numbers, summed, strict=True):
            held.arrived.pop(at, None)
            self._arrived(at, grad.to(held.held[at].data.dtype), is_fresh=True)

    def update(self, shard: int, x: Tensor) -> None:
        worker = self.worker
        if ("update", shard) not in worker.compared:
            held = worker.shards.held[shard]
            require_kind(x, held.tensor, held.region, held.tensor.dtype, worker.role.file)
            worker.compared.add(("update", shard))
        worker.shards.update(shard, x)

    # Inside.

    def _numbers(self, function: Callable[..., Any], at: int | None) -> tuple[int, int]:
        """Of a call, and of that which computes it again."""
        return self.worker.role.calls[name_of_call(function, at)]

    def _last(self, function: Callable[..., Any], at: int | None) -> int:
        return self._numbers(function, at)[1]

    def _returned(self, number: int) -> Saved:
        """What a call has kept, once it is here with all that the call reads."""
        saved = self._saved.pop(number)
        if saved.away:
            saved.away.wait()
        self._arrive(self._read.pop(number))
        return saved

    def _copies(self, places: Sequence[Any]) -> list[Copy]:
        """In their order at each place."""
        return list({id(copy): copy for copy, _ in self._leaves_of_copies(places)}.values())

    def _leaves_of_copies(self, places: Sequence[Any]) -> list[tuple[Copy, Tensor]]:
        table, copies = self.worker.table.leaves, self.worker.shards.copies
        numbers = [at for place in places for at in self.leaves.at(place)]
        pairs = ((table[at].copy, self.leaves.tensors[at]) for at in numbers)
        return [(copies[copy], leaf) for copy, leaf in pairs if copy is not None]

    def _await(self, args: Sequence[Any]) -> frozenset[int]:
        """What is gathered of what a call reads, once it is there."""
        if not self.leaves.come_and_go:
            return frozenset()
        read = frozenset().union(*map(self.leaves.below, args))
        self._arrive(read)
        return read

    def _arrive(self, leaves: frozenset[int]) -> None:
        coming = self.worker.coming
        for gathering in [one for one in coming if one.leaves & leaves]:
            with torch.no_grad():
                gathering.wait()
            coming.remove(gathering)

    def _own(self, results: Any, read: frozenset[int]) -> Any:
        """Results that are views of what is gathered would go with it."""
        if not read:
            return results
        pointers = self._gathered(read)

        def copied(x: Any) -> Any:
            views = isinstance(x, Tensor) and not x.is_sparse and x.untyped_storage().data_ptr() in pointers
            return x.detach().clone().requires_grad_(x.requires_grad) if views else x

        return tuple(map(copied, results)) if isinstance(results, tuple) else copied(results)

    def _gathered(self, read: frozenset[int]) -> frozenset[int]:
        """The memory of what is gathered of some leaves."""
        table, copies = self.worker.table.leaves, self.worker.shards.copies
        numbers = {table[self.leaves.index[leaf]].copy for leaf in read}
        # What is not there has none, nor has what is empty.
        return frozenset(copies[copy].pointer for copy in numbers if copy is not None) - {0}

    def _away(self, read: frozenset[int]) -> Away:
        if self._stays is None:
            # What is gathered goes, and its memory is then somebody else's.
            leaves = zip(self.worker.table.leaves, self.leaves.tensors, strict=True)
            held = (*(leaf for it, leaf in leaves if it.copy is None), *self._inputs)
            self._stays = frozenset(x.untyped_storage().data_ptr() for x in held)
        return Away(self.worker.host, self._stays | self._gathered(read))

    def _exchange(
        self, kind: str, number: int, xs: Sequence[Tensor], dtype: torch.dtype | None = None
    ) -> list[Tensor]:
        part = self.worker.part(number)
        self._compare(number, part, xs, dtype)
        dtype = dtype or self.worker.exchange_dtype(number)
        self.issued.append((kind, number, part.bytes_sent(self.comm.rank, dtype.itemsize)))
        with torch.no_grad():
            return exchange(self.comm, part, xs, dtype)

    def _compare(self, number: int, part: Part, xs: Sequence[Tensor], dtype: torch.dtype | None) -> None:
        """Before the first message of an exchange: all ranks must give what the others expect."""
        worker = self.worker
        if ("exchange", number) in worker.compared:
            return
        tensor = worker.program.tensors[worker.program.exchanges[number].tensor]
        for x, region in zip(xs, part.sources, strict=True):
            require_kind(x, tensor, region, dtype or worker.exchange_dtype(number), worker.role.file)
        worker.compared.add(("exchange", number))

    def _sent(self, leaf: Tensor) -> int:
        """The bytes of its gradient in a message."""
        dtype = self.worker.reduce or gradient_dtype(leaf)
        return leaf.numel() * dtype.itemsize

    def _along(
        self,
        how: Callable[..., Tensor],
        x: Tensor,
        group: int,
        dim: int,
        sizes: Sizes,
        factors: Factors,
        **more: Any,
    ) -> Tensor:
        """A collective that cuts or joins along one factor."""
        ranks = self._in_group(how.__name__, group, x.nbytes)
        with torch.no_grad():
            y = how(self.comm, x, ranks, dim, sizes, factors, **more)
        return self._marked(y, x.requires_grad)

    def _all_reduce(self, xs: Sequence[Tensor], group: int, op: str, async_op: bool) -> list[Tensor]:
        ranks = self._in_group("all_reduce", group, sum([x.nbytes for x in xs]))
        with torch.no_grad():
            ys = collectives.all_reduce_together(self.comm, xs, ranks, op, self._later(async_op))
        return [self._marked(y, x.requires_grad) for x, y in zip(xs, ys, strict=True)]

    def _later(self, async_op: bool) -> Ends | None:
        return self._in_flight if async_op else None

    def _in_group_of_several(self, kind: str, group: int, size: int) -> tuple[int, ...]:
        """What a rank does with its own host is no communication."""
        ranks = self.worker.program.group_of(group, self.comm.rank)
        return self._in_group(kind, group, size) if len(ranks) > 1 else ranks

    def _in_group(self, kind: str, group: int, size: int) -> tuple[int, ...]:
        self.issued.append((kind, group, size))
        return self.worker.program.group_of(group, self.comm.rank)

    def _marked(self, y: Tensor, needs_grad: bool) -> Tensor:
        differentiable = y.is_floating_point() or y.is_complex()
        return y.detach().requires_grad_(needs_grad and differentiable and self._saving)

    def _unscale(self, scale: float) -> None:
        arrived = self.worker.shards.arrived.values()
        for grad in (*(leaf.grad for leaf in self.leaves.tensors), *arrived):
            if grad is not None:
                grad.mul_(1 / scale)

    def _settle(self) -> None:
        for bucket in self._buckets:
            bucket.wait()
        self._buckets = []
        self._collect(0)

    def _collect(self, left: int) -> None:
        """Gradients that have arrived, but for so many messages: what is on its way holds memory."""
        while len(self._scatterings) > left:
            for copy, grad in self._scatterings.pop(0).wait():
                self._arrived(copy.at, grad.to(copy.shard.data.dtype), is_fresh=True)
        self._taken_by_host(left)

    def _arrived(self, shard: int, grad: Tensor, *, is_fresh: bool) -> None:
        """The gradient of a shard, in memory of its own or not; to the host if the shard is there."""
        if self.worker.shards.held[shard].tensor.on_host:
            self._handed.append((shard, *self.worker.host.hand(grad)))
            self._taken_by_host(HANDED if self.comm.device.type == "cuda" else 0)
        else:
            self.worker.shards.arrives(shard, grad if is_fresh else grad.clone())

    def _taken_by_host(self, left: int) -> None:
        """It adds up what has got there, but for so many of the last gradients."""
        while len(self._handed) > left:
            shard, grad, event = self._handed.pop(0)
            if event is not None:
                event.synchronize()
            self.worker.shards.arrives(shard, grad)

    def _begin_backward(self) -> None:
        if not self.worker.code.trains or not self._saving:
            raise without_backward()
        if self._state != "forwarded":
            raise RuntimeFault(
                "SW0709",
                "backward through the same forward a second time",
                why="what it kept has been freed",
                fix="run the forward again; from several outputs begin one backward, from their sum",
            )
        if self._versions != self.worker.shards.versions():
            raise RuntimeFault(
                "SW0709",
                "a parameter has been modified by an inplace operation since the forward",
                why="it is sharded between ranks, and backward gathers it again",
                fix="change parameters after backward",
            )
        self._state = "in backward"

    def _whole(
        self, number: int, saved: Saved, grads: Sequence[Tensor | None], again: Sequence[Tensor]
    ) -> Any:
        """Of a call all gradients."""
        edges, given = match(saved, grads)
        executing = _Executing(self, BACKWARD, number, edges=edges)
        with executing, saved.forgotten.given(again) if saved.forgotten else nullcontext():
            if edges:
                torch.autograd.backward(edges, given)
        return _taken(saved)


def begin(worker: Worker, issued: list[Issued], step: object) -> None:
    """Runs what a step begins with."""
    Run(worker, no_numbers, issued, saving=False, step=step).begin()


def no_numbers(*_: Any) -> Tensor:
    raise AssertionError("what runs once a step draws nothing")


def without_backward() -> RuntimeFault:
    return RuntimeFault(
        "SW0709",
        "this forward has no backward",
        why="it was run without gradients, and kept nothing for a backward",
        fix="run the forward outside torch.no_grad()",
    )


def _no_autocast(device: torch.device) -> Any:
    """What autocast casts around a call is in the program."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def _taken(saved: Saved) -> Any:
    values = tuple(slot.take() for slot in saved.slots)
    return values[0] if len(values) == 1 else values


def _listed(outputs: Any, count: int) -> list[Any]:
    if isinstance(outputs, tuple):
        return list(outputs)
    return [outputs] if count else []
