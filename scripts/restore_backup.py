#!/usr/bin/python3
"""Restores a disk of a backup without the program that wrote it.

FOLDER is a repository of backups. A repository in a bucket is copied into a folder first, with any tool for its store
(`aws s3 sync`, `rclone copy`, `mc mirror`); the objects keep their names. OUTPUT is a new raw image; holes stay holes.

docs/formats/repository.md describes the format. This reader follows the page, and shares no code with the program. It reads
the log from its first entry, ignores recorded states, and verifies the chain of hashes and the authentication of every
object that it reads. It does not compute the names of chunks: their authentication covers the names.

It needs Python 3.11 and Debian's packages python3-nacl, python3-zstandard and, for a passphrase, python3-argon2.
"""

import argparse
import hashlib
import hmac
import json
import os
import re
import struct
import sys
from datetime import datetime, timezone
from pathlib import Path

FANOUT, LEVELS, PAGE_HEAD_BYTES, REF_BYTES = 256, 4, 36, 52
# Nonce, tag, and the head of the plaintext: what an empty content has.
SEAL_BYTES, CONTENT_BYTES_MAX = 24 + 16 + 5, 256 << 20
KEY_FILE_MARK = "unstun-repository-key-1 "
ARGON2_MAX = {"memory_kib": 1 << 20, "passes": 16, "lanes": 16}


class Refused(Exception):
    """What is wrong, with the object's name."""


class Unauthentic(Refused):
    """Sealed bytes that this key does not open."""


try:
    import zstandard
    from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt as decrypt
    from nacl.exceptions import CryptoError
except ImportError as e:
    sys.exit(f"restore_backup: {e}; install python3-nacl and python3-zstandard, and run this with Debian's python3")


# BLAKE3 of a whole input, for the chain of the log: the standard library has no such hash.
IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
MIXES = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
         (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8


def compress(chaining, block, counter, flags):
    """Returns the chaining value after one block of at most 64 bytes."""
    words = struct.unpack("<16I", block.ljust(64, b"\0"))
    v = [*chaining, *IV[:4], counter & 0xFFFFFFFF, counter >> 32, len(block), flags]
    for _ in range(7):
        for n, (a, b, c, d) in enumerate(MIXES):
            for word, right, left in ((words[2 * n], 16, 12), (words[2 * n + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & 0xFFFFFFFF
                x = v[d] ^ v[a]
                v[d] = (x >> right | x << 32 - right) & 0xFFFFFFFF
                v[c] = (v[c] + v[d]) & 0xFFFFFFFF
                x = v[b] ^ v[c]
                v[b] = (x >> left | x << 32 - left) & 0xFFFFFFFF
        words = [words[n] for n in ORDER]
    return [v[n] ^ v[n + 8] for n in range(8)]


def subtree(data, first, flags):
    """Returns the chaining value of a subtree whose first chunk of 1,024 bytes has the number `first`."""
    if len(data) <= 1024:
        blocks = [data[at:at + 64] for at in range(0, len(data), 64)] or [b""]
        chaining = IV
        for n, block in enumerate(blocks):
            last = CHUNK_END | flags if n == len(blocks) - 1 else 0
            chaining = compress(chaining, block, first, (CHUNK_START if n == 0 else 0) | last)
        return chaining
    # The left side is the largest power of two of chunks that leaves something for the right side.
    left = 1 << ((len(data) - 1) // 1024).bit_length() - 1
    sides = subtree(data[:left * 1024], first, 0) + subtree(data[left * 1024:], first + left, 0)
    return compress(IV, struct.pack("<16I", *sides), 0, PARENT | flags)


def blake3(data):
    return struct.pack("<8I", *subtree(data, 0, ROOT)).hex()


def hkdf(key, salt, info):
    """HKDF-SHA256 (RFC 5869) of 32 bytes."""
    secret = hmac.digest(salt or bytes(32), key, hashlib.sha256)
    return hmac.digest(secret, info + b"\x01", hashlib.sha256)


def unseal(key, name, about, sealed):
    """Returns the content of sealed bytes, for which the writer gave the associated data `about`."""
    if len(sealed) < SEAL_BYTES:
        raise Refused(f"{name}: {len(sealed)} sealed bytes, expected at least {SEAL_BYTES}")
    try:
        plain = decrypt(sealed[24:], about, sealed[:24], key)
    except CryptoError:
        raise Unauthentic(f"{name}: the content fails its authentication: it has changed, or has another key") from None
    compression, size = struct.unpack_from("<BI", plain)
    if compression > 1 or size > CONTENT_BYTES_MAX:
        raise Refused(f"{name}: compression {compression} and {size} bytes, expected 0 or 1 and at most {CONTENT_BYTES_MAX}")
    try:
        content = zstandard.ZstdDecompressor().decompress(plain[5:], max_output_size=size) if compression else plain[5:]
    except zstandard.ZstdError as e:
        raise Refused(f"{name}: zstd: {e}") from None
    if len(content) != size:
        raise Refused(f"{name}: the content has {len(content)} bytes and states {size}")
    return content


def wrapping_key(derivation, salt, secret):
    """Returns the key that wraps the master key, or None if the secret is of the other kind."""
    kind, value = secret
    if derivation["kdf"] == "hkdf-sha256":
        return hkdf(value, salt, b"unstun repository 1 key file") if kind == "key file" else None
    if derivation["kdf"] != "argon2id":
        raise Refused(f"unknown key derivation {derivation['kdf']!r}")
    if kind != "passphrase":
        return None
    for field, most in ARGON2_MAX.items():
        if not 1 <= derivation[field] <= most:
            raise Refused(f"argon2id with {field} {derivation[field]}, expected 1 to {most}")
    try:
        from argon2.low_level import Type, hash_secret_raw
    except ImportError as e:
        raise SystemExit(f"restore_backup: {e}; a passphrase needs the package python3-argon2") from None
    return hash_secret_raw(value, salt, derivation["passes"], derivation["memory_kib"], derivation["lanes"], 32, Type.ID, 0x13)


class Repository:
    def __init__(self, folder, secret):
        self.folder = folder
        self.info = json.loads(self.read("repository"))
        if self.info.get("format") != 1:
            raise Refused(f"repository: format {self.info.get('format')!r}, and this program reads format 1")
        self.chunk_bytes = self.info["chunk_bytes"]
        if self.chunk_bytes not in [1 << bits for bits in range(12, 21)]:
            raise Refused(f"repository: chunk_bytes {self.chunk_bytes!r}, expected a power of two from 4096 to 1048576")
        self.data_key = hkdf(self.open_master(secret), b"", b"unstun repository 1 data")
        self.backups, self.forgotten, self.gone = {}, {}, {}
        self.read_log()

    def read(self, name):
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise Refused(f"{self.folder}/{name}: the object is missing") from None

    def numbers(self, kind):
        names = [path.name for path in self.folder.glob(f"{kind}/*")]
        return {int(name) for name in names if re.fullmatch("[0-9]{10}", name)}

    def open_master(self, secret):
        """Returns the master key from the first of the wrapped keys that the secret opens."""
        about, problems = f"key of {self.info['id']} {self.chunk_bytes}".encode(), []
        for path in sorted(self.folder.glob("keys/" + "[0-9a-f]" * 16)):
            name = f"keys/{path.name}"
            try:
                wrapped = json.loads(path.read_bytes())
                key = wrapping_key(wrapped["derivation"], bytes.fromhex(wrapped["salt"]), secret)
                if key is not None:
                    master = unseal(key, name, about, bytes.fromhex(wrapped["master"]))
                    if len(master) == 32:
                        return master
            except Unauthentic:
                continue  # The key of another administrator.
            except (Refused, KeyError, TypeError, ValueError) as e:
                problems.append(f"; {name} is damaged ({e})")
        raise Refused(f"{self.folder}: this {secret[0]} opens none of the repository's keys{''.join(problems)}")

    def read_log(self):
        """Reads all entries in order. Each must be there and have the hash of the one before it."""
        numbers, previous = self.numbers("log"), ""
        # A recorded state shows that its entry existed, even if the end of the log is missing.
        for number in range(1, max(numbers | self.numbers("state"), default=0) + 1):
            name = f"log/{number:010}"
            if number not in numbers:
                raise Refused(f"{name}: the entry is missing, and later ones exist; objects were removed or restored apart")
            body = self.read(name)
            entry = json.loads(unseal(self.data_key, name, name.encode(), body))
            if entry["number"] != number or entry["previous"] != previous:
                raise Refused(f"{name}: the entry does not follow the one before it; objects were replaced or restored apart")
            previous = blake3(body)
            self.apply(name, number, entry["event"])

    def apply(self, name, number, event):
        if event == "begin":
            return
        [(kind, value)] = event.items() if isinstance(event, dict) else [(event, {})]
        if kind == "backup":
            self.backups[number] = value
        elif kind == "forget":
            moved = [n for n in value["backups"] if n in self.backups]
            self.forgotten.update((n, self.backups.pop(n)) for n in moved)
        elif kind == "recall":
            moved = [n for n in value["backups"] if n in self.forgotten]
            self.backups.update((n, self.forgotten.pop(n)) for n in moved)
        elif kind == "sweep":
            # The packs of a sweep are never those of a backup that is left, so that only the backups matter here.
            self.gone.update((n, number) for n in value["gone"] if self.forgotten.pop(n, None))
        else:
            raise Refused(f"{name}: unknown event {kind!r}; a later version may have written it")

    def chunk(self, reference):
        """Returns the content of a chunk, from its pack."""
        chunk_id, epoch, number, offset, sealed_bytes, size = reference
        name = f"packs/{epoch:010}/{number:08}"
        try:
            with open(self.folder / name, "rb") as pack:
                pack.seek(offset)
                sealed = pack.read(sealed_bytes)
        except FileNotFoundError:
            raise Refused(f"{name}: the pack is missing, and the backup needs it") from None
        if len(sealed) != sealed_bytes:
            raise Refused(f"{name}: {len(sealed)} bytes at {offset}, expected {sealed_bytes}")
        content = unseal(self.data_key, f"{name} at {offset}", b"chunk" + chunk_id, sealed)
        if len(content) != size:
            raise Refused(f"{name} at {offset}: {len(content)} bytes of content, expected {size}")
        return content

    def chunks(self, reference, level=LEVELS - 1, index=0):
        """Yields the number of each chunk below a page of the map, with its reference, in order."""
        page = self.chunk(reference)
        name = f"page of level {level} in packs/{reference[1]:010}/{reference[2]:08} at {reference[3]}"
        if len(page) < PAGE_HEAD_BYTES or page[0] != level:
            raise Refused(f"{name}: this is no such page")
        slots = [n for n in range(FANOUT) if page[4 + n // 8] >> n % 8 & 1]
        if len(page) != PAGE_HEAD_BYTES + len(slots) * REF_BYTES:
            raise Refused(f"{name}: {len(page)} bytes for {len(slots)} references")
        for n, below in zip(slots, struct.iter_unpack("<32s5I", page[PAGE_HEAD_BYTES:])):
            if level:
                yield from self.chunks(below, level - 1, index * FANOUT + n)
            else:
                yield index * FANOUT + n, below

    def restore(self, number, disk_number, output):
        if number in self.gone:
            raise Refused(f"backup {number}: it was removed, and entry {self.gone[number]} of the log gave up its content")
        if number in self.forgotten:
            print(f"backup {number} was removed, and its content is still there", file=sys.stderr)
        backup = {**self.backups, **self.forgotten}.get(number, {"disks": []})
        disk = next((disk for disk in backup["disks"] if disk["number"] == disk_number), None)
        if disk is None:
            raise Refused(f"backup {number}, disk {disk_number}: the repository has no such disk")
        data_bytes = 0
        with open(output, "xb") as out:
            try:
                out.truncate(disk["size_bytes"])
                root = disk["root"]
                for n, reference in self.chunks((bytes.fromhex(root[0]), *root[1:])) if root else ():
                    content, begin = self.chunk(reference), n * self.chunk_bytes
                    data_bytes += len(content)
                    if len(content) > self.chunk_bytes or begin >= disk["size_bytes"]:
                        raise Refused(f"backup {number}: {len(content)} bytes at {begin} are no chunk of disk {disk_number}")
                    out.seek(begin)
                    out.write(content[:disk["size_bytes"] - begin])
                if data_bytes != disk["data_bytes"]:
                    raise Refused(f"backup {number}: {data_bytes} bytes of data, and the backup states {disk['data_bytes']}")
                out.flush()
                os.fsync(out.fileno())
            except BaseException:
                os.unlink(output)
                raise


def read_secret(arguments):
    if arguments.passphrase_file:
        # The line break at the end is the editor's.
        return "passphrase", re.sub(rb"\r?\n\Z", b"", Path(arguments.passphrase_file).read_bytes())
    text = Path(arguments.key_file).read_text(encoding="ascii", errors="replace").strip()
    digits = text.removeprefix(KEY_FILE_MARK).strip()
    if not text.startswith(KEY_FILE_MARK) or not re.fullmatch("[0-9a-fA-F]{64}", digits):
        raise Refused(f"{arguments.key_file}: this is no key file of a repository")
    return "key file", bytes.fromhex(digits)


def list_backups(repository):
    for number, backup in sorted({**repository.backups, **repository.forgotten}.items()):
        mark = " (removed)" if number in repository.forgotten else ""
        taken = datetime.fromtimestamp(backup["taken_us"] // 1_000_000, timezone.utc)
        disks = ", ".join(f"disk {disk['number']}: {disk['size_bytes']} bytes" for disk in backup["disks"])
        print(f"{number} {taken:%Y-%m-%dT%H:%M:%SZ} {backup['origin']['vm']} {backup['origin']['snapshot']!r}{mark}; {disks}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    secret = parser.add_mutually_exclusive_group(required=True)
    secret.add_argument("--key-file")
    secret.add_argument("--passphrase-file")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the backups")
    restore = commands.add_parser("restore", help="write a disk of a backup into a new raw image")
    restore.add_argument("number", type=int)
    restore.add_argument("disk", type=int)
    restore.add_argument("output", type=Path)
    arguments = parser.parse_args()
    try:
        repository = Repository(arguments.folder, read_secret(arguments))
        if arguments.command == "list":
            list_backups(repository)
        else:
            repository.restore(arguments.number, arguments.disk, arguments.output)
    except (Refused, OSError) as e:
        sys.exit(f"restore_backup: {e}")
    except (KeyError, TypeError, ValueError, IndexError, struct.error) as e:
        sys.exit(f"restore_backup: {arguments.folder}: an object has a content that this program does not understand ({e!r})")


if __name__ == "__main__":
    main()
