//! Decoder of messages: from bytes and the number of descriptors to a checked request.
//!
//! It has no I/O and trusts no field: sizes, counts and indices are checked here, once.

use super::protocol::request::*;
use super::protocol::*;

/// A region of the guest's memory, as the client describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Address for the guest's devices.
    pub guest: u64,
    /// Length in bytes, not zero.
    pub len: u64,
    /// Address in the client's process; rings are given by it.
    pub user: u64,
    /// Place in the passed file.
    pub offset: u64,
}

/// Places of a ring, as addresses in the client's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddresses {
    /// Whether changes of the used ring are logged as dirty.
    pub logged: bool,
    /// Table of descriptors.
    pub descriptors: u64,
    /// Ring of answers.
    pub used: u64,
    /// Ring of requests.
    pub available: u64,
    /// Guest address of the used ring, for the log.
    pub log: u64,
}

/// Layout of the records of requests under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InflightLayout {
    /// Length in bytes.
    pub bytes: u64,
    /// Place in the file.
    pub offset: u64,
    /// Number of queues.
    pub queues: u16,
    /// Entries of each queue.
    pub entries: u16,
}

/// A checked request of a client. Descriptors arrive beside it.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetLogBase {
        bytes: u64,
        offset: u64,
    },
    SetLogFd,
    SetRingEntries {
        queue: u16,
        entries: u16,
    },
    SetRingAddresses {
        queue: u16,
        addresses: RingAddresses,
    },
    SetRingBase {
        queue: u16,
        base: u16,
    },
    GetRingBase {
        queue: u16,
    },
    /// `has_event`: the event arrives as a descriptor; without one there is none.
    SetKick {
        queue: u16,
        has_event: bool,
    },
    SetCall {
        queue: u16,
        has_event: bool,
    },
    SetError {
        queue: u16,
        has_event: bool,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNumber,
    EnableRing {
        queue: u16,
        enabled: bool,
    },
    SetBackendChannel,
    GetConfig {
        offset: u32,
        len: u32,
        flags: u32,
    },
    SetConfig,
    GetInflight(InflightLayout),
    SetInflight(InflightLayout),
    GetMemorySlots,
    AddRegion(Region),
    RemoveRegion(Region),
}

/// Header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Type of the message.
    pub request: u32,
    /// Version and flags.
    pub flags: u32,
    /// Length of the payload, at most [`PAYLOAD_BYTES_MAX`].
    pub payload: usize,
}

type Result<T> = std::result::Result<T, String>;

/// A cursor over untrusted bytes in little-endian order. Every read fails if too few are left.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or("the payload is too short")?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn region(&mut self) -> Result<Region> {
        let region = Region { guest: self.u64()?, len: self.u64()?, user: self.u64()?, offset: self.u64()? };
        let wraps = |start: u64| start.checked_add(region.len).is_none();
        if region.len == 0 || wraps(region.guest) || wraps(region.user) || wraps(region.offset) {
            return Err(format!("a region of {} bytes at {:#x}", region.len, region.guest));
        }
        Ok(region)
    }
}

/// Decodes a header.
///
/// # Errors
/// What is wrong with it. The stream has no meaning afterwards.
pub(super) fn header(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
    let mut fields = Fields(bytes);
    let (request, flags, payload) = (fields.u32()?, fields.u32()?, fields.u32()?);
    if flags & VERSION_MASK != VERSION || flags & FLAG_REPLY != 0 {
        return Err(format!("a message with the flags {flags:#x}, expected a request of version 1"));
    }
    let payload = usize::try_from(payload).unwrap_or(usize::MAX);
    if payload > PAYLOAD_BYTES_MAX {
        return Err(format!("a message of {payload} bytes, expected at most {PAYLOAD_BYTES_MAX}"));
    }
    Ok(Header { request, flags, payload })
}

/// Decodes a message. `descriptors` is the number of descriptors that arrived with it.
///
/// # Errors
/// What is wrong with it, or that the message is not known.
pub(super) fn request(header: &Header, payload: &[u8], descriptors: usize) -> Result<Request> {
    let mut fields = Fields(payload);
    let request = decode(header.request, &mut fields)?;
    let expected = match &request {
        Request::SetMemTable(regions) => regions.len(),
        Request::SetKick { has_event, .. }
        | Request::SetCall { has_event, .. }
        | Request::SetError { has_event, .. } => usize::from(*has_event),
        Request::SetLogBase { .. }
        | Request::SetLogFd
        | Request::SetBackendChannel
        | Request::SetInflight(_)
        | Request::AddRegion(_) => 1,
        // Some clients pass the file of the region, which is not needed.
        Request::RemoveRegion(_) => descriptors.min(1),
        _ => 0,
    };
    if descriptors != expected {
        return Err(format!(
            "message {} with {descriptors} descriptors, expected {expected}",
            header.request
        ));
    }
    Ok(request)
}

fn decode(kind: u32, fields: &mut Fields<'_>) -> Result<Request> {
    Ok(match kind {
        GET_FEATURES => Request::GetFeatures,
        SET_FEATURES => Request::SetFeatures(fields.u64()?),
        SET_OWNER => Request::SetOwner,
        RESET_OWNER => Request::ResetOwner,
        SET_MEM_TABLE => memory_table(fields)?,
        SET_LOG_BASE => Request::SetLogBase { bytes: fields.u64()?, offset: fields.u64()? },
        SET_LOG_FD => Request::SetLogFd,
        SET_VRING_NUM => ring_entries(fields)?,
        SET_VRING_ADDR => ring_addresses(fields)?,
        SET_VRING_BASE => {
            let (queue, base) = (queue(fields)?, fields.u32()?);
            let base = u16::try_from(base).map_err(|_| format!("a ring that begins at {base}"))?;
            Request::SetRingBase { queue, base }
        }
        GET_VRING_BASE => Request::GetRingBase { queue: queue(fields)? },
        SET_VRING_KICK => event(fields).map(|(queue, has_event)| Request::SetKick { queue, has_event })?,
        SET_VRING_CALL => event(fields).map(|(queue, has_event)| Request::SetCall { queue, has_event })?,
        SET_VRING_ERR => event(fields).map(|(queue, has_event)| Request::SetError { queue, has_event })?,
        GET_PROTOCOL_FEATURES => Request::GetProtocolFeatures,
        SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(fields.u64()?),
        GET_QUEUE_NUM => Request::GetQueueNumber,
        SET_VRING_ENABLE => Request::EnableRing { queue: queue(fields)?, enabled: fields.u32()? != 0 },
        SET_BACKEND_REQ_FD => Request::SetBackendChannel,
        GET_CONFIG => config(fields)?,
        SET_CONFIG => Request::SetConfig,
        GET_INFLIGHT_FD => Request::GetInflight(inflight(fields)?),
        SET_INFLIGHT_FD => Request::SetInflight(inflight(fields)?),
        GET_MAX_MEM_SLOTS => Request::GetMemorySlots,
        ADD_MEM_REG => Request::AddRegion(single_region(fields)?),
        REM_MEM_REG => Request::RemoveRegion(single_region(fields)?),
        _ => return Err(format!("message {kind} is not supported")),
    })
}

fn queue(fields: &mut Fields<'_>) -> Result<u16> {
    let queue = fields.u32()?;
    let known = u16::try_from(queue).ok().filter(|queue| *queue < QUEUES_MAX);
    known.ok_or_else(|| format!("queue {queue} of at most {QUEUES_MAX}"))
}

/// Decodes a queue in eight bits, and the bit that says that there is no event.
fn event(fields: &mut Fields<'_>) -> Result<(u16, bool)> {
    const NO_EVENT: u64 = 1 << 8;
    let value = fields.u64()?;
    let queue = (value & 0xff) as u16;
    if queue >= QUEUES_MAX {
        return Err(format!("queue {queue} of at most {QUEUES_MAX}"));
    }
    Ok((queue, value & NO_EVENT == 0))
}

fn memory_table(fields: &mut Fields<'_>) -> Result<Request> {
    let (regions, _padding) = (fields.u32()? as usize, fields.u32()?);
    if regions > REGIONS_MAX.min(8) {
        return Err(format!("{regions} regions of memory, expected at most 8"));
    }
    (0..regions).map(|_| fields.region()).collect::<Result<_>>().map(Request::SetMemTable)
}

fn single_region(fields: &mut Fields<'_>) -> Result<Region> {
    let _padding = fields.u64()?;
    fields.region()
}

fn ring_entries(fields: &mut Fields<'_>) -> Result<Request> {
    let (queue, entries) = (queue(fields)?, fields.u32()?);
    let valid = u16::try_from(entries).ok().filter(|n| n.is_power_of_two() && *n <= RING_ENTRIES_MAX);
    let entries = valid.ok_or_else(|| format!("a ring of {entries} entries, expected a power of two"))?;
    Ok(Request::SetRingEntries { queue, entries })
}

fn ring_addresses(fields: &mut Fields<'_>) -> Result<Request> {
    let (queue, flags) = (queue(fields)?, fields.u32()?);
    let (descriptors, used, available, log) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    let addresses = RingAddresses { logged: flags & 1 != 0, descriptors, used, available, log };
    Ok(Request::SetRingAddresses { queue, addresses })
}

fn config(fields: &mut Fields<'_>) -> Result<Request> {
    let (offset, len, flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
    if len > 256 {
        return Err(format!("{len} bytes of the configuration space, which has at most 256"));
    }
    Ok(Request::GetConfig { offset, len, flags })
}

fn inflight(fields: &mut Fields<'_>) -> Result<InflightLayout> {
    let layout = InflightLayout {
        bytes: fields.u64()?,
        offset: fields.u64()?,
        queues: fields.u16()?,
        entries: fields.u16()?,
    };
    if layout.queues == 0 || layout.queues > QUEUES_MAX {
        return Err(format!("records of {} queues, expected 1 to {QUEUES_MAX}", layout.queues));
    }
    if layout.entries == 0 || layout.entries > RING_ENTRIES_MAX {
        return Err(format!("records of rings with {} entries", layout.entries));
    }
    Ok(layout)
}

/// Encodes a reply.
pub(super) fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
    encode(request, VERSION | FLAG_REPLY, payload)
}

pub(super) fn encode(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    for field in [request, flags, payload.len() as u32] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}
