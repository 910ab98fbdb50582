//! Constants of the NBD protocol, each under the section of `doc/proto.md` that defines it, and this server's limits.

use blk::SECTOR;

// "Newstyle negotiation".
/// `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second half of the greeting, and the head of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Zeros after an answer to EXPORT_NAME, unless both sides agreed to omit them.
pub const EXPORT_NAME_PADDING: usize = 124;
/// Magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;

// "Fixed newstyle negotiation".
/// Head of every answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

// "Handshake flags" and "Client flags": both sides use the same bits.
/// The side supports the fixed newstyle handshake. Both sides must.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// The answer to EXPORT_NAME ends without [`EXPORT_NAME_PADDING`]. Valid if both sides set it.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

// "Transmission flags".
/// Always set: the other bits are valid.
pub const TRANSMIT_HAS_FLAGS: u16 = 1 << 0;
/// Commands that change the export are refused with `Perm`.
pub const TRANSMIT_READ_ONLY: u16 = 1 << 1;
/// FLUSH is supported.
pub const TRANSMIT_FLUSH: u16 = 1 << 2;
/// [`CMD_FLAG_FUA`] is supported.
pub const TRANSMIT_FUA: u16 = 1 << 3;
/// TRIM is supported.
pub const TRANSMIT_TRIM: u16 = 1 << 5;
/// WRITE_ZEROES is supported.
pub const TRANSMIT_WRITE_ZEROES: u16 = 1 << 6;
/// [`CMD_FLAG_DF`] is supported; only with structured replies.
pub const TRANSMIT_DF: u16 = 1 << 7;
/// A flush on one connection covers the writes that were completed on all of them.
pub const TRANSMIT_MULTI_CONN: u16 = 1 << 8;
/// CACHE is supported.
pub const TRANSMIT_CACHE: u16 = 1 << 10;
/// [`CMD_FLAG_FAST_ZERO`] is supported.
pub const TRANSMIT_FAST_ZERO: u16 = 1 << 11;

// "Option types".
/// Chooses an export and ends the handshake. The only possible error reply is to close the connection.
pub const OPT_EXPORT_NAME: u32 = 1;
/// Ends the handshake without an export.
pub const OPT_ABORT: u32 = 2;
/// Requests the names of all exports.
pub const OPT_LIST: u32 = 3;
/// Starts TLS, if the listener has it.
pub const OPT_STARTTLS: u32 = 5;
/// Requests the properties of an export.
pub const OPT_INFO: u32 = 6;
/// Like INFO, and chooses the export if the reply is not an error.
pub const OPT_GO: u32 = 7;
/// Requests structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// Requests the metadata contexts of an export.
pub const OPT_LIST_META_CONTEXT: u32 = 9;
/// Selects the metadata contexts of BLOCK_STATUS replies.
pub const OPT_SET_META_CONTEXT: u32 = 10;

// "Option reply types"; errors have bit 31 set.
/// The option is complete; the last of its replies.
pub const REP_ACK: u32 = 1;
/// One export of a LIST: length of the name, name, description.
pub const REP_SERVER: u32 = 2;
/// One piece of information about an export; see the `INFO_` constants.
pub const REP_INFO: u32 = 3;
/// One metadata context: its ID on this connection, and its name.
pub const REP_META_CONTEXT: u32 = 4;
/// Bit of every reply that refuses an option.
pub const REP_ERROR: u32 = 1 << 31;
/// The server does not support the option.
pub const REP_ERR_UNSUP: u32 = REP_ERROR + 1;
/// The server declines the option in its present state.
pub const REP_ERR_POLICY: u32 = REP_ERROR + 2;
/// The option's payload is invalid.
pub const REP_ERR_INVALID: u32 = REP_ERROR + 3;
/// The client has to start TLS first.
pub const REP_ERR_TLS_REQD: u32 = REP_ERROR + 5;
/// There is no export of this name.
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR + 6;
/// The server is about to end.
pub const REP_ERR_SHUTDOWN: u32 = REP_ERROR + 7;
/// The server serves only clients that comply with its block sizes.
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR + 8;
/// The option is longer than the server reads.
pub const REP_ERR_TOO_BIG: u32 = REP_ERROR + 9;

// "NBD_REP_INFO": information types.
/// Size in bytes and transmission flags; in every answer to INFO and GO.
pub const INFO_EXPORT: u16 = 0;
/// Name of the export as the server writes it.
pub const INFO_NAME: u16 = 1;
/// Description of the export, for people.
pub const INFO_DESCRIPTION: u16 = 2;
/// Smallest, preferred and largest length of a request, in bytes.
pub const INFO_BLOCK_SIZE: u16 = 3;

// "The base: metadata namespace".
/// Query for every context of the namespace.
pub const BASE_NAMESPACE: &str = "base:";
/// The context that distinguishes holes and zeros from data.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// ID of `base:allocation` on every connection. Any number would do.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// Namespace of QEMU's contexts ("NBD interoperability" in QEMU's documentation).
pub const QEMU_NAMESPACE: &str = "qemu:";
/// Before the name of a bitmap: what differs from another state.
pub const QEMU_BITMAP: &str = "qemu:dirty-bitmap:";
/// ID of the first bitmap that a client has selected; the others follow.
pub const QEMU_BITMAP_ID: u32 = 2;
/// Maximum number of bitmaps that a client can select. An answer has up to 32 KiB for each.
pub const BITMAPS_MAX: usize = 4;
/// The range differs from the other state.
pub const STATE_DIRTY: u32 = 1;
/// Nothing is allocated for the range.
pub const STATE_HOLE: u32 = 1 << 0;
/// The range reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

// "Request message".
/// Head of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic, flags, type, cookie, offset, length.
pub const REQUEST_BYTES: usize = 28;

// "Simple reply message" and "Structured reply chunk message".
/// Head of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic, error, cookie.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Head of every chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// Magic, flags, type, cookie, length.
pub const CHUNK_BYTES: usize = 20;
/// The last chunk of its reply.
pub const CHUNK_FLAG_DONE: u16 = 1 << 0;

// "Structured reply types".
/// Ends a reply that has nothing more to say.
pub const CHUNK_NONE: u16 = 0;
/// Offset of 64 bits, then the data read there.
pub const CHUNK_OFFSET_DATA: u16 = 1;
/// Offset of 64 bits and length of 32 bits: the range reads as zeros.
pub const CHUNK_OFFSET_HOLE: u16 = 2;
/// ID of a metadata context, then pairs of a length and a state, 32 bits each.
pub const CHUNK_BLOCK_STATUS: u16 = 5;
/// Bit of every chunk that reports an error.
pub const CHUNK_ERROR_BIT: u16 = 1 << 15;
/// Error, length of a message, message: the request failed.
pub const CHUNK_ERROR: u16 = CHUNK_ERROR_BIT + 1;

// "Command flags".
/// The reply follows only after the request's writes are durable.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// For WRITE_ZEROES: the range stays allocated.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// For READ: all data in one chunk.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// For BLOCK_STATUS: one piece is enough.
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// For WRITE_ZEROES: fail with `NotSupported` rather than write zeros.
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

// "Request types".
/// Reads the range.
pub const CMD_READ: u16 = 0;
/// Writes the payload.
pub const CMD_WRITE: u16 = 1;
/// Ends the connection once all earlier requests are answered. It has no reply.
pub const CMD_DISC: u16 = 2;
/// Makes durable every write that was answered earlier.
pub const CMD_FLUSH: u16 = 3;
/// The client does not need the range's content any more; a hint.
pub const CMD_TRIM: u16 = 4;
/// Advises the server to read ahead.
pub const CMD_CACHE: u16 = 5;
/// Makes the range read as zeros.
pub const CMD_WRITE_ZEROES: u16 = 6;
/// Requests the state of the range.
pub const CMD_BLOCK_STATUS: u16 = 7;

/// "Error values": all that a reply may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdErrno {
    /// The export is read only, or its present state forbids the request.
    Perm = 1,
    /// The device or the store failed, or the lease of the store is lost.
    Io = 5,
    /// The request is invalid.
    Invalid = 22,
    /// The datastore is full, or the range ends past the export.
    NoSpace = 28,
    /// A fast zero is not possible.
    NotSupported = 95,
    /// The request was cancelled, as at the end of the server.
    Shutdown = 108,
}

// "Conventions": strings.
/// Longest name, description or query, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;

// "Size constraints": the values that this server advertises.
/// Alignment and smallest length of a request, in bytes.
pub const BLOCK_BYTES_MIN: u32 = SECTOR as u32;
/// Alignment and length, in bytes, below which requests may be slower.
pub const BLOCK_BYTES_PREFERRED: u32 = 4096;
/// Largest payload that every client may use, 2^25 bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Payload of one option: an export name (4 KiB) with 6 queries of full length, or some 1,500 usual ones.
pub const OPTION_BYTES_MAX: u32 = 32 << 10;
/// Options of one negotiation. `qemu-nbd --list` sends two for each export, so 2,000 exports are possible.
pub const OPTIONS_MAX: u32 = 4096;
/// Time limit of a client for all its answers from accept to transmission: 10 s. Three round trips take far less on any
/// link that can carry a disk. Time in which the server works or waits for something else does not count.
pub const NEGOTIATION_LIMIT_US: u64 = 10_000_000;
/// Time limit of a client that only gets a refusal.
pub const REFUSAL_LIMIT_US: u64 = 2_000_000;
/// Connections that get a refusal at the same time; further ones are closed without one.
pub const REFUSALS_MAX: usize = 64;

/// Receive buffer of a connection that sends little: it has room for all its requests, or for the beginning of one
/// payload.
pub const RECEIVE_BYTES: usize = 8 << 10;
/// Receive buffer of a connection whose receives fill the small one: about 60 writes of 4 KiB, more than a Unix
/// socket's buffer (208 KiB).
pub const RECEIVE_BYTES_LARGE: usize = 256 << 10;
/// Default memory of all connections and requests.
pub const MEMORY_BYTES: u64 = 512 << 20;
/// Default limit of connections of one server, negotiating ones included: half of `MEMORY_BYTES` suffices for them.
pub const CONNECTIONS_MAX: usize = 4096;
/// Connections that each listener and each export may have as long as any are left at all. Beyond these it may have as
/// many as it leaves for others.
pub const CONNECTIONS_RESERVED: usize = 16;
/// Extents in one reply to BLOCK_STATUS: 32 KiB of descriptors. The client continues where they end.
pub const EXTENTS_MAX: usize = 4096;
/// A volume's worst case of memory for one sector of a BLOCK_STATUS: its piece in a map, and in the answer.
pub const STATUS_BYTES_PER_SECTOR: u64 = 64;
/// Time in which requests under way may finish after `stop`, before their connection is closed.
pub const STOP_GRACE_US: u64 = 5_000_000;
/// Pause after a failed accept (no descriptors left), so that the retries are no busy loop.
pub const ACCEPT_RETRY_US: u64 = 100_000;
