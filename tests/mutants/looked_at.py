"""Changes that no test notices and that a review found harmless, each with the reason."""

from __future__ import annotations

# The module, the unchanged line of the source, and the text that replaces a part of it.
HARMLESS: dict[tuple[str, str, str], str] = {
    (
        "edgeagent/cache_retention.py",
        "break",
        "continue",
    ): "The blocks are in the order of their rules: what follows is passed over one by one.",
    (
        "edgeagent/state_files.py",
        'NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)',
        "1",
    ): "Said for systems without the flags.",
    (
        "edgeagent/state_files.py",
        'NO_WAIT = getattr(os, "O_NONBLOCK", 0)',
        "1",
    ): "Said for systems without the flag.",
    (
        "edgeagent/engine/cache/disk/folder.py",
        "return Outcome.LATER",
        "return None",
    ): "The types refuse it, and the writer asks for `trouble` before.",
    (
        "edgeagent/engine/cache/disk/folder.py",
        "if needed > 0 and num_bytes <= max(0, limit):",
        "1",
    ): "A block has more than one byte.",
    (
        "edgeagent/engine/cache/disk/folder.py",
        "self._missing_bytes = 0  # the size of the block that found no room",
        "1",
    ): "Set with `room_trouble`, and read only with it.",
    (
        "edgeagent/engine/cache/slots.py",
        "break",
        "continue",
    ): "What comes later is no longer, and of no higher rank: it is looked at in vain.",
    (
        "edgeagent/api/gate/access.py",
        'return base64.b64decode(encoded).split(b":", 1)',
        "2",
    ): "No token of ours has a colon, so it is a part of its own either way.",
    (
        "edgeagent/engine/cache/block_table.py",
        "num_blocks = {0: 0}",
        "1",
    ): "All chains are one longer, and only compared with each other.",
    (
        "edgeagent/engine/cache/block_table.py",
        "if place.start in last_to and num_blocks[place.start] + 1 < num_blocks.get(place.end, 1 << 60):",
        "(num_blocks[place.start] + 1 <= num_blocks.get(place.end, 1 << 60))",
    ): "Of chains with as many blocks either will do.",
    (
        "edgeagent/engine/cache/block_table.py",
        "if place.start in last_to and num_blocks[place.start] + 1 < num_blocks.get(place.end, 1 << 60):",
        "2",
    ): "More than any chain has blocks.",
    (
        "edgeagent/engine/cache/block_table.py",
        "if place.start in last_to and num_blocks[place.start] + 1 < num_blocks.get(place.end, 1 << 60):",
        "61",
    ): "More than any chain has blocks.",
    (
        "edgeagent/engine/cache/block_table.py",
        "if best_rank is None or rank > best_rank:",
        "(rank >= best_rank)",
    ): "Of blocks with the same rank either serves as well.",
    (
        "edgeagent/engine/cache/slots.py",
        "rank = (2 if self._tree.length(seq_id) == length else 1) if seq_id in self._idle else 0",
        "3",
    ): "It is the best all the same; the others are looked at in vain.",
    (
        "edgeagent/engine/cache/block_table.py",
        'return BlockTable(Keyring(b"", bytes(16)), 0, can_cut=False)',
        "17",
    ): "It keeps nothing.",
    (
        "edgeagent/engine/cache/block_table.py",
        "complete = self._part(walk, {at: 0}, at + len(own) - 1)",
        "1",
    ): "There is one place to begin at, so the number of blocks before it is compared with nothing.",
    (
        "edgeagent/engine/cache/slots.py",
        "if rank == 2:",
        "3",
    ): "There is no better one; the others are looked at in vain.",
    (
        "edgeagent/engine/cache/block_table.py",
        'return BlockTable(Keyring(b"", bytes(16)), 0, can_cut=False)',
        "True",
    ): "It keeps nothing.",
    (
        "edgeagent/engine/cache/block_table.py",
        'keyring or Keyring(b"", os.urandom(32)),',
        "33",
    ): "A longer secret is as good.",
    (
        "edgeagent/engine/cache/radix_tree.py",
        "if place.start < depth < place.end:",
        "(place.start <= depth < place.end)",
    ): "A block with none of the tokens is refused by those who ask: MIN_CUT is the least.",
    (
        "edgeagent/engine/cache/disk/folder.py",
        "return Outcome.LOST",
        "return None",
    ): "The types refuse it, and what is neither written nor to be tried again counts as lost.",
    (
        "edgeagent/engine/cache/disk/folder.py",
        "if free_bytes - num_bytes < limits.min_free_bytes:",
        "(free_bytes - num_bytes <= limits.min_free_bytes)",
    ): "One byte decides which of two reasons is told.",
    (
        "edgeagent/engine/cache/radix_tree.py",
        "if end > first:",
        "(end >= first)",
    ): "An empty part comes with the others; the tokens are the same.",
    (
        "edgeagent/engine/cache/slots.py",
        "if rank > best_rank and self._runner.can_trim(seq_id, length):",
        "(rank >= best_rank)",
    ): "Of several holders with the same rank either serves as well.",
    (
        "edgeagent/api/gate/security.py",
        "super().__init__(error.message)",
        "pass",
    ): "The message would show in the traceback of a bug only; refusals are answered from `error`.",
    (
        "edgeagent/engine/cache/radix_tree.py",
        "while node is not None and node.depth > start:",
        "(node.depth >= start)",
    ): "An empty part comes with the others; the tokens are the same.",
    (
        "edgeagent/engine/cache/radix_tree.py",
        "if len(node.sequences) > len(seen):  # it includes the sequences of the node below",
        "(len(node.sequences) >= len(seen))",
    ): "Nothing is left of as many sequences without those that were seen.",
    (
        "edgeagent/router/delivery.py",
        "self.num_tokens = 0",
        "1",
    ): "`begin` sets it before anything reads it.",
    (
        "edgeagent/credentials/keys.py",
        "content = read_private(path, max_bytes=MAX_CLIENTS * 512)",
        "513",
    ): "More than the longest rows take, which is all that the bound has to be.",
}
