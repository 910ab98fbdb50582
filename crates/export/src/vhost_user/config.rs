//! The configuration space of the block device, and the features that this server offers.

use blk::SECTOR;
use blk::volume::VolumeInfo;

use super::protocol::*;

/// Bytes of the configuration space up to the fields of write-zeroes.
const SPACE_BYTES: usize = 60;
/// Place at which older clients expect the space: that of the registers of virtio-mmio.
const OLD_OFFSET: u32 = 0x100;

/// Protocol features that this server offers.
pub(super) const PROTOCOL_FEATURES: u64 = PROTOCOL_MQ
    | PROTOCOL_LOG_SHMFD
    | PROTOCOL_REPLY_ACK
    | PROTOCOL_BACKEND_REQ
    | PROTOCOL_CONFIG
    | PROTOCOL_INFLIGHT
    | PROTOCOL_CONFIGURE_MEM_SLOTS;

/// Returns the features of a disk.
pub(super) fn features(info: &VolumeInfo) -> u64 {
    let always = F_SEG_MAX
        | F_BLK_SIZE
        | F_FLUSH
        | F_TOPOLOGY
        | F_MQ
        | F_DISCARD
        | F_WRITE_ZEROES
        | F_LOG_ALL
        | F_INDIRECT
        | F_EVENT_IDX
        | F_PROTOCOL_FEATURES
        | F_VERSION_1;
    if info.read_only { always | F_RO } else { always }
}

/// Returns `len` bytes of the configuration space from `offset`, zeros behind its end.
pub(super) fn read(info: &VolumeInfo, offset: u32, len: u32) -> Vec<u8> {
    let from = if offset >= OLD_OFFSET { offset - OLD_OFFSET } else { offset };
    let space = space(info);
    let byte = |at: u32| space.get(at as usize).copied().unwrap_or(0);
    (from..from.saturating_add(len)).map(byte).collect()
}

fn space(info: &VolumeInfo) -> [u8; SPACE_BYTES] {
    let mut space = [0; SPACE_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let preferred = u64::from(info.preferred_bytes).clamp(SECTOR, 1 << 20).next_power_of_two();
    let blocks = preferred / SECTOR;
    put(0, &(info.size_bytes / SECTOR).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &(SECTOR as u32).to_le_bytes());
    put(24, &[blocks.trailing_zeros() as u8, 0]);
    put(26, &(blocks as u16).to_le_bytes());
    // The device has a write cache, which a guest with FLUSH makes durable.
    put(32, &[1]);
    put(34, &QUEUES_MAX.to_le_bytes());
    put(36, &RANGE_SECTORS_MAX.to_le_bytes());
    put(40, &RANGES_MAX.to_le_bytes());
    put(44, &(blocks as u32).to_le_bytes());
    put(48, &RANGE_SECTORS_MAX.to_le_bytes());
    put(52, &RANGES_MAX.to_le_bytes());
    put(56, &[1]);
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: VolumeInfo =
        VolumeInfo { size_bytes: 1 << 30, read_only: false, preferred_bytes: 4096, fast_zero: true };

    #[test]
    fn limits_of_discard_and_zeroes_are_never_zero() {
        let space = read(&INFO, 0, 60);
        let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(space[..8].try_into().unwrap()), (1 << 30) / 512);
        assert!([36, 40, 44, 48, 52].iter().all(|at| word(*at) > 0));
        assert_eq!((word(20), space[24], word(12)), (512, 3, 126));
    }

    #[test]
    fn both_places_show_the_same_space_and_zeros_behind_it() {
        assert_eq!(read(&INFO, 0x100, 60), read(&INFO, 0, 60));
        assert_eq!(read(&INFO, 0, 256)[60..], [0; 196]);
        assert_eq!(read(&INFO, u32::MAX, 256), [0; 256], "at the end of the numbers");
        assert_ne!(features(&INFO) & F_FLUSH, 0);
        assert_eq!(features(&INFO) & F_RO, 0);
        assert_ne!(features(&VolumeInfo { read_only: true, ..INFO }) & F_RO, 0);
    }
}
