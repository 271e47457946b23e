"""PrefixCache: which pages of tokens have keys and values that any request may use."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from orcaserve.core import Pooling, Request

TOKEN = "q"  # eight bytes each: whatever a client sends, and the tests, fits
TOKEN_BYTES = 8


class Block:
    """One full page of tokens, after those of its parent. What is in it never changes.

    id: counted from 1, never used again; 0: a root, which holds no tokens. key: its tokens.
    batch: number of the batch that fills it. n_users: live requests whose page tables hold it.
    latest: by first token, the child that was added last: where a prompt that goes on like it finds its next tokens.
    gone: nobody finds it any more.
    """

    __slots__ = ("batch", "children", "gone", "id", "key", "latest", "n_users", "parent")

    def __init__(self, id: int, parent: Block | None, key: bytes, batch: int) -> None:
        self.id, self.parent, self.key, self.batch = id, parent, key, batch
        self.n_users = 0
        self.gone = False
        self.children = self.latest = _NONE


_NONE: dict[bytes, Block] = {}  # of most blocks nothing follows, and dictionaries are large


class PrefixCache:
    """A tree of blocks for every adapter and cache_salt. No I/O, no clock; the ledger above it counts the slots.

    Children are found by the very tokens of their page, so no two prefixes are ever taken for one another. Whoever uses
    a block uses all of its ancestors. Blocks that nobody uses lie in the order in which they were left, a child before
    its parent, and are evicted from the front of it.

    limit: most tokens of a text whose keys do not depend on how long the text is (None: they never do). A longer one
    neither takes nor gives.
    """

    def __init__(self, page_size: int, limit: int | None = None) -> None:
        self.page_size = page_size
        self.limit = limit
        self.n_blocks = 0
        self._idle: OrderedDict[int, Block] = OrderedDict()
        self._roots: dict[bytes, Block] = {}
        self._next_id = 1
        self._evicted: list[int] = []

    @property
    def n_idle(self) -> int:
        """Blocks that no live request uses."""
        return len(self._idle)

    def find(self, request: Request, known: Sequence[Block]) -> list[Block]:
        """The longest path of blocks that hold the first tokens of its (next) initiation, but for the last token, which
        has to be computed for there to be a next one. known: what an earlier call has found; cheap if that still holds.
        """
        if known and known[-1].gone:
            known = ()
        n_tokens, page = request.n_input + len(request.output), self.page_size
        n_pages = (n_tokens - 1) // page
        above = known[-1] if known else self._roots.get(owner_of(request))
        found = list(known)
        if above is None or len(found) == n_pages or not self._may_take(request, n_tokens):
            return found
        for key in self._keys(request, len(found), n_pages):
            block = above.children.get(key)
            if block is None:
                break
            found.append(block)
            above = block
        return found

    def find_part(self, request: Request, path: Sequence[Block], batch: int) -> tuple[Block, int] | None:
        """A block whose first tokens, so many, follow those of the path in the request: to be copied. Only a block that
        an earlier batch has filled, for copying comes before a batch's own work.
        """
        n_tokens, page = request.n_input + len(request.output), self.page_size
        above = path[-1] if path else self._roots.get(owner_of(request))
        first = len(path) * page
        n = min(n_tokens - 1 - first, page)
        if above is None or n < 1 or not above.latest or not self._may_take(request, n_tokens):
            return None
        wanted = _bytes(request, first, first + n)
        block = above.latest.get(wanted[:TOKEN_BYTES])
        if block is None or block.batch >= batch:
            return None
        n_same = 1
        while n_same < n and (
            wanted[n_same * TOKEN_BYTES : (n_same + 1) * TOKEN_BYTES]
            == block.key[n_same * TOKEN_BYTES : (n_same + 1) * TOKEN_BYTES]
        ):
            n_same += 1
        return block, n_same

    def use(self, blocks: Sequence[Block]) -> int:
        """One more request uses these. How many of them nobody used before."""
        n = 0
        for block in blocks:
            if block.n_users == 0:
                del self._idle[block.id]
                n += 1
            block.n_users += 1
        return n

    def leave(self, path: Sequence[Block]) -> int:
        """A request no longer uses these, a path from the root. How many of them nobody uses now: they are kept, or
        evicted at once if they are gone."""
        n = 0
        for block in reversed(path):
            block.n_users -= 1
            if block.n_users == 0:
                n += 1
                if block.gone:
                    self._forget(block)
                else:
                    self._idle[block.id] = block
        return n

    def add(self, request: Request, path: list[Block], end: int, batch: int) -> Block | None:
        """The request's pages behind its path, up to token index `end`, become blocks, which it uses.

        Where one is there already, made by somebody else, the path ends before it, and it is returned; or, if that is
        gone, the block at the end of the path.
        """
        if end // self.page_size <= len(path) or (self.limit is not None and end > self.limit):
            return None
        above = path[-1] if path else self._root(owner_of(request))
        if above.gone:
            return above
        page, size = self.page_size, self.page_size * TOKEN_BYTES
        data = _bytes(request, len(path) * page, end // page * page)
        for at in range(0, len(data), size):
            key = data[at : at + size]
            if (twin := above.children.get(key)) is not None:
                return twin
            block = Block(self._next_id, above, key, batch)
            self._next_id += 1
            self.n_blocks += 1
            block.n_users = 1
            if above.children is _NONE:
                above.children, above.latest = {}, {}
            above.children[key] = above.latest[key[:TOKEN_BYTES]] = block
            path.append(block)
            above = block
        return None

    def withdraw(self, block: Block) -> None:
        """Nobody finds this block and those below it any more. Those that nobody uses are evicted."""
        if block.gone:
            return
        parent = block.parent
        assert parent is not None, "roots hold nothing"
        self._unlink(parent, block)
        below = [block]
        while below:
            each = below.pop()
            each.gone = True
            below += each.children.values()
            if each.n_users == 0:
                del self._idle[each.id]
                self._forget(each)

    def evict(self, n: int = 1) -> None:
        """The n blocks that were left longest ago go. There are so many that nobody uses."""
        for _ in range(n):
            _, block = self._idle.popitem(last=False)
            assert not block.children, "a child was left after its parent"
            block.gone = True
            assert block.parent is not None
            self._unlink(block.parent, block)
            self._evicted.append(block.id)
        self.n_blocks -= n

    def take_evicted(self) -> tuple[int, ...]:
        """Ids of blocks that have gone since the last call: the workers are to be told."""
        evicted, self._evicted = tuple(self._evicted), []
        return evicted

    def clear(self) -> None:
        """The workers are gone, and all blocks with them. Nobody uses any."""
        assert self.n_blocks == len(self._idle)
        for block in self._idle.values():
            block.gone = True
        self._idle.clear()
        self._roots.clear()
        self._evicted.clear()
        self.n_blocks = 0

    def check(self, users: Iterator[Sequence[Block]]) -> None:
        """Assert what holds between any two calls. users: the paths of all live requests. Walks the trees."""
        counts: dict[int, int] = {}
        seen: dict[int, Block] = {}
        for path in users:
            for above, block in zip([None, *path], path, strict=False):
                counts[block.id] = counts.get(block.id, 0) + 1
                seen[block.id] = block
                assert above is None or block.parent is above, "a path with a gap"
        for owner, root in self._roots.items():
            assert root.children, f"nothing is below the root of {owner!r}"
            below = list(root.children.values())
            while below:
                block = below.pop()
                assert not block.gone and len(block.key) == self.page_size * TOKEN_BYTES
                assert block.parent is not None and block.parent.children[block.key] is block
                seen[block.id] = block
                below += block.children.values()
        assert len(seen) == self.n_blocks
        for block in seen.values():
            assert block.n_users == counts.get(block.id, 0)
            assert (block.n_users == 0) == (block.id in self._idle)
        order = {id: place for place, id in enumerate(self._idle)}
        for block in self._idle.values():
            parent = block.parent
            assert parent is not None and (parent.id not in order or order[block.id] < order[parent.id])

    def _may_take(self, request: Request, n_tokens: int) -> bool:
        """What is told of a prompt's tokens, and their mean, takes the hidden states of all of them."""
        if request.params.prompt_logprobs is not None and not request.output:
            return False
        if request.params.pooling is Pooling.MEAN:
            return False
        return self.limit is None or n_tokens <= self.limit

    def _keys(self, request: Request, first: int, end: int) -> Iterator[bytes]:
        """Of the request's pages first .. end. Made a few at a time: who looks for them often stops at the first."""
        page, size, n = self.page_size, self.page_size * TOKEN_BYTES, 1
        while first < end:
            after = min(first + n, end)
            data = _bytes(request, first * page, after * page)
            for at in range(0, len(data), size):
                yield data[at : at + size]
            first, n = after, 2 * n

    def _root(self, owner: bytes) -> Block:
        root = self._roots.get(owner)
        if root is None:
            root = self._roots[owner] = Block(0, None, owner, 0)
        return root

    def _unlink(self, parent: Block, block: Block) -> None:
        """Take it out of the tree; a root that nothing is below goes too."""
        parent.children.pop(block.key, None)
        first = block.key[:TOKEN_BYTES]
        if parent.latest.get(first) is block:
            del parent.latest[first]
        if parent.id == 0 and not parent.children:
            self._roots.pop(parent.key, None)

    def _forget(self, block: Block) -> None:
        self.n_blocks -= 1
        self._evicted.append(block.id)


def owner_of(request: Request) -> bytes:
    """Who may share: requests with one adapter, whose keys and values it changes, and one salt."""
    return f"{request.adapter}:{request.terms.cache_salt}".encode("utf-8", "surrogatepass")


def _bytes(request: Request, begin: int, end: int) -> bytes:
    """Tokens begin .. end of its input and its output so far."""
    n_input = request.n_input
    if end <= n_input:
        tokens: Sequence[int] = request.input_ids[begin:end]
    elif begin >= n_input:
        tokens = request.output[begin - n_input : end - n_input]
    else:
        tokens = [*request.input_ids[begin:], *request.output[: end - n_input]]
    return array(TOKEN, tokens).tobytes()
