"""What a native store's file says of itself while it is in use: docs/formats/native.md has the boxes."""

import mmap
import os
import struct

BLOCK = 4096
SLOTS = (0, 8)
JOURNAL_START = 16
SUPERBLOCK, BATCH = b"unstunSB", b"unstunJB"
# Offsets in a superblock and in a batch's header.
CHECKPOINT_AT, JOURNAL_PAGES_AT, JOURNAL_SEQ_AT = 72, 96, 128
SEQ_AT, PAGES_AT = 16, 80


def word(page, at):
    return struct.unpack_from("<Q", page, at)[0]


class StoreFile:
    """Reads past the page cache, as the daemon does."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self.end = 0

    def page(self, block):
        page = mmap.mmap(-1, BLOCK)
        os.preadv(self.file, [page], block * BLOCK)
        return page

    def superblock(self):
        pages = [self.page(slot) for slot in SLOTS]
        return max((page for page in pages if page[:8] == SUPERBLOCK), key=lambda page: word(page, CHECKPOINT_AT))

    def checkpoints(self):
        """A number that grows by one with each, and with each opening."""
        return word(self.superblock(), CHECKPOINT_AT)

    def journal(self):
        """(pages that a recovery would read, pages of the ring)."""
        superblock = self.superblock()
        ring, tail = word(superblock, JOURNAL_PAGES_AT), word(superblock, JOURNAL_SEQ_AT)
        # Batches only come behind those that were seen last time.
        self.end = max(self.end, tail)
        while length := self.batch_at(self.end, ring) or self.behind_gap(ring):
            self.end += length
        return self.end - tail, ring

    def behind_gap(self, ring):
        """Where a batch did not fit before the ring's end, pages are passed over."""
        gap = -self.end % ring
        length = self.batch_at(self.end + gap, ring) if gap else 0
        return length and gap + length

    def batch_at(self, seq, ring):
        page = self.page(JOURNAL_START + seq % ring)
        if page[:8] != BATCH or word(page, SEQ_AT) != seq:
            return 0
        return struct.unpack_from("<H", page, PAGES_AT)[0]

    def close(self):
        os.close(self.file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
