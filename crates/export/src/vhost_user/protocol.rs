//! Constants of the vhost-user protocol and of the virtio-blk device, and this server's limits.

// "Header" of a message: request, flags, size, each 32 bits.
/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 12;
/// Version 1, in the flags.
pub const VERSION: u32 = 1;
/// The bits of the flags that contain the version.
pub const VERSION_MASK: u32 = 3;
/// The message is a reply.
pub const FLAG_REPLY: u32 = 1 << 2;
/// The client waits for a reply to a message that has none otherwise.
pub const FLAG_NEED_REPLY: u32 = 1 << 3;
/// Largest payload that is received: a table of eight regions has 264 bytes, a configuration space 268.
pub const PAYLOAD_BYTES_MAX: usize = 4096;

// "Front-end message types".
#[allow(missing_docs)]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Message to the client: the configuration space has changed.
pub const BACKEND_CONFIG_CHANGE: u32 = 2;

// "Protocol features".
/// Several queues.
pub const PROTOCOL_MQ: u64 = 1 << 0;
/// The client passes the log of dirty pages as memory.
pub const PROTOCOL_LOG_SHMFD: u64 = 1 << 1;
/// Messages may request a reply.
pub const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
/// The client passes a socket for messages to it.
pub const PROTOCOL_BACKEND_REQ: u64 = 1 << 5;
/// The configuration space is read and written by messages.
pub const PROTOCOL_CONFIG: u64 = 1 << 9;
/// Requests under way are recorded in memory that outlives this process.
pub const PROTOCOL_INFLIGHT: u64 = 1 << 12;
/// Regions of memory are added and removed one by one.
pub const PROTOCOL_CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

// Feature bits of the device.
/// Most segments of a request are in the configuration space.
pub const F_SEG_MAX: u64 = 1 << 2;
/// The disk is read-only.
pub const F_RO: u64 = 1 << 5;
/// The block size is in the configuration space.
pub const F_BLK_SIZE: u64 = 1 << 6;
/// The guest flushes. Without it every write is durable before its answer.
pub const F_FLUSH: u64 = 1 << 9;
/// The topology is in the configuration space.
pub const F_TOPOLOGY: u64 = 1 << 10;
/// The number of queues is in the configuration space.
pub const F_MQ: u64 = 1 << 12;
/// Discard is supported.
pub const F_DISCARD: u64 = 1 << 13;
/// Write-zeroes is supported.
pub const F_WRITE_ZEROES: u64 = 1 << 14;
/// The log of dirty pages is kept (VHOST_F_LOG_ALL).
pub const F_LOG_ALL: u64 = 1 << 26;
/// Indirect descriptors.
pub const F_INDIRECT: u64 = 1 << 28;
/// Notifications are suppressed by index.
pub const F_EVENT_IDX: u64 = 1 << 29;
/// Protocol features are negotiated (VHOST_USER_F_PROTOCOL_FEATURES).
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// Virtio 1.0 and later.
pub const F_VERSION_1: u64 = 1 << 32;

// "Device Operation" of the block device.
/// Reads sectors.
pub const BLK_IN: u32 = 0;
/// Writes sectors.
pub const BLK_OUT: u32 = 1;
/// Makes completed writes durable.
pub const BLK_FLUSH: u32 = 4;
/// Returns the disk's serial number, 20 bytes.
pub const BLK_GET_ID: u32 = 8;
/// Discards ranges.
pub const BLK_DISCARD: u32 = 11;
/// Zeroes ranges.
pub const BLK_WRITE_ZEROES: u32 = 13;
/// The request has succeeded.
pub const STATUS_OK: u8 = 0;
/// The request has failed.
pub const STATUS_IOERR: u8 = 1;
/// The request is not supported.
pub const STATUS_UNSUPPORTED: u8 = 2;
/// Header of a request: type, reserved, sector.
pub const BLK_HEADER_BYTES: usize = 16;
/// A range of a discard or of a write-zeroes: sector, number of sectors, flags.
pub const RANGE_BYTES: usize = 16;
/// The range may be deallocated; a flag of a range.
pub const RANGE_UNMAP: u32 = 1;
/// Length of a serial number.
pub const SERIAL_BYTES: usize = 20;

// Limits of this server.
/// Most queues of a device. Each takes three descriptors and two tasks, about 2 KiB, so that the tasks of a device stay
/// within the promise to a connection.
pub const QUEUES_MAX: u16 = 8;
/// Most entries of a ring: virtio's own limit.
pub const RING_ENTRIES_MAX: u16 = 32_768;
/// Most descriptors of one request, like QEMU's own limit. Its list then takes 16 KiB.
pub const CHAIN_DESCRIPTORS_MAX: usize = 1024;
/// Most descriptors that a guest uses which keeps to `SEGMENTS_MAX`, with header and status. The list takes 2 KiB. One
/// request of a connection at a time may have a longer list that waits for memory.
pub const CHAIN_DESCRIPTORS_SHORT: usize = SEGMENTS_MAX as usize + 2;
/// Most regions of memory: QEMU's table has at most eight, and a guest that grows adds one for each module.
pub const REGIONS_MAX: usize = 32;
/// Most regions that are mapped for one guest, those of earlier tables included: eight tables. Earlier ones stay mapped
/// as long as requests under way use them.
pub const MAPPINGS_MAX: usize = 8 * REGIONS_MAX;
/// Segments of a request that the guest is told: a queue of 128 entries, less header and status.
pub const SEGMENTS_MAX: u32 = 126;
/// Ranges of one discard or write-zeroes that the guest is told. The list has 256 bytes.
pub const RANGES_MAX: u32 = 16;
/// Most sectors of one such range that the guest is told: 2 GiB. A limit of zero would crash some guests.
pub const RANGE_SECTORS_MAX: u32 = 4 << 20;
/// Time in which the requests under way may finish after `stop`, before their connection is closed.
pub const STOP_GRACE_US: u64 = 5_000_000;
/// Time for which a ring that the client stops waits for requests that wait for space. They fail afterwards: the guest
/// stands still meanwhile.
pub const DRAIN_WAIT_US: u64 = 1_000_000;
/// Time after which requests fail that began to wait for space since then.
pub const DRAIN_AGAIN_US: u64 = 50_000;
/// Pause after a failed accept.
pub const ACCEPT_RETRY_US: u64 = 100_000;
/// Time for which a new connection waits for the end of an earlier one of its client, whose requests must not run beside
/// their own repetitions.
pub const PREDECESSOR_WAIT_US: u64 = 10_000_000;
/// Descriptors of one connection at most: the socket, the client's channel, three events of each queue, and two that
/// arrive and are closed again.
pub const CONNECTION_DESCRIPTORS: u64 = 4 + 3 * QUEUES_MAX as u64;
