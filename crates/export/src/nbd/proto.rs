//! Numbers of the NBD protocol, each under the section of `doc/proto.md` that defines it, and the limits we chose.

use blk::SECTOR;

// "Newstyle negotiation".
/// `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second half of the greeting, and the head of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Zeros after an answer to EXPORT_NAME, unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING: usize = 124;
/// Magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;

// "Fixed newstyle negotiation".
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

// "Handshake flags" and "Client flags": the same bits both ways.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

// "Transmission flags".
pub const TRANSMIT_HAS_FLAGS: u16 = 1 << 0;
pub const TRANSMIT_READ_ONLY: u16 = 1 << 1;
pub const TRANSMIT_FLUSH: u16 = 1 << 2;
pub const TRANSMIT_FUA: u16 = 1 << 3;
pub const TRANSMIT_TRIM: u16 = 1 << 5;
pub const TRANSMIT_WRITE_ZEROES: u16 = 1 << 6;
pub const TRANSMIT_DF: u16 = 1 << 7;
pub const TRANSMIT_MULTI_CONN: u16 = 1 << 8;
pub const TRANSMIT_CACHE: u16 = 1 << 10;
pub const TRANSMIT_FAST_ZERO: u16 = 1 << 11;

// "Option types".
pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;

// "Option reply types"; errors have bit 31 set.
pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
const REP_ERROR: u32 = 1 << 31;
pub const REP_ERR_UNSUP: u32 = REP_ERROR + 1;
pub const REP_ERR_POLICY: u32 = REP_ERROR + 2;
pub const REP_ERR_INVALID: u32 = REP_ERROR + 3;
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR + 6;
pub const REP_ERR_SHUTDOWN: u32 = REP_ERROR + 7;
pub const REP_ERR_TOO_BIG: u32 = REP_ERROR + 9;

// "NBD_REP_INFO": information types.
pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_DESCRIPTION: u16 = 2;
pub const INFO_BLOCK_SIZE: u16 = 3;

// "The base: metadata namespace".
pub const BASE_NAMESPACE: &str = "base:";
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Our id of `base:allocation` on every connection; any number would do.
pub const BASE_ALLOCATION_ID: u32 = 1;
pub const STATE_HOLE: u32 = 1 << 0;
pub const STATE_ZERO: u32 = 1 << 1;

// "Request message".
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const REQUEST_BYTES: usize = 28;

// "Simple reply message" and "Structured reply chunk message".
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const SIMPLE_REPLY_BYTES: usize = 16;
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
pub const CHUNK_BYTES: usize = 20;
pub const CHUNK_FLAG_DONE: u16 = 1 << 0;

// "Structured reply types".
pub const CHUNK_OFFSET_DATA: u16 = 1;
pub const CHUNK_BLOCK_STATUS: u16 = 5;
pub const CHUNK_ERROR: u16 = (1 << 15) + 1;

// "Command flags".
pub const CMD_FLAG_FUA: u16 = 1 << 0;
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub const CMD_FLAG_DF: u16 = 1 << 2;
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

// "Request types".
pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_CACHE: u16 = 5;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

/// "Error values": all a reply may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdErrno {
    Perm = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
    Shutdown = 108,
}

// "Conventions": strings.
pub const STRING_BYTES_MAX: usize = 4096;

// "Size constraints": what we advertise.
pub const BLOCK_BYTES_MIN: u32 = SECTOR as u32;
pub const BLOCK_BYTES_PREFERRED: u32 = 4096;
/// The size every client may count on, 2^25.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Payload of one option: an export name (4 KiB) with 6 queries of full length, or some 1,500 usual ones.
pub const OPTION_BYTES_MAX: u32 = 32 << 10;
/// Options of one negotiation. `qemu-nbd --list` asks twice per export: 2,000 exports.
pub const OPTIONS_MAX: u32 = 4096;
/// What a client may take, all its answers from accept to transmission together, 10 s: three round trips take far less
/// on any link that can carry a disk. Time in which the server works or waits for something else does not count.
pub const NEGOTIATION_LIMIT_US: u64 = 10_000_000;
/// The same for a client that only gets a refusal.
pub const REFUSAL_LIMIT_US: u64 = 2_000_000;
/// Connections that get a refusal at the same time; further ones are closed without one.
pub const REFUSALS_MAX: usize = 64;

/// The largest piece of a request that is held, read or written at once. Larger requests are carried out in pieces, so that
/// none needs much memory, or the core for long.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Requests of one connection (and pieces of large ones) that are taken in but whose reply has not left; more are not
/// received. 256 simple replies are one page. Clients seen in the field keep at most 64 (nbdcopy) or 128 (kernel).
pub const REQUESTS_MAX: usize = 256;
/// What they hold in memory, both ways, however much is free: 64 MiB of payload, and 1 MiB beside it.
pub const IN_FLIGHT_BYTES_MAX: u64 = 65 << 20;
/// What is received at once by a connection that sends little: all its requests, or the beginning of one payload.
pub const RECEIVE_BYTES: usize = 8 << 10;
/// The same when a receive has filled the buffer: about 60 writes of 4 KiB, more than a Unix socket's buffer (208 KiB)
/// holds.
pub const RECEIVE_BYTES_LARGE: usize = 256 << 10;
/// Default memory of all connections and requests.
pub const MEMORY_BYTES: u64 = 512 << 20;
/// Default limit of connections of one server, negotiating ones included: half of `MEMORY_BYTES` suffices for them.
pub const CONNECTIONS_MAX: usize = 4096;
/// Connections that each listener and each export may have as long as any are left at all. Beyond these it may have as
/// many as it leaves for others.
pub const CONNECTIONS_RESERVED: usize = 16;
/// Extents in one answer to BLOCK_STATUS: 32 KiB of descriptors. The client asks on from where they end.
pub const EXTENTS_MAX: usize = 4096;
/// A volume's worst case for one sector of a BLOCK_STATUS: its piece in a map, and in the answer.
pub const STATUS_BYTES_PER_SECTOR: u64 = 64;
/// How long `stop` lets requests under way finish before it cuts their connection.
pub const STOP_GRACE_US: u64 = 5_000_000;
/// Pause after a failed accept (out of descriptors), so that it is no busy loop.
pub const ACCEPT_RETRY_US: u64 = 100_000;
