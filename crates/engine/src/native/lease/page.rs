//! The page of a lease: the owner that may write the store. `docs/formats/native.md` has the fields.

use blk::{Buf, Error, Result};

use crate::native::layout::{
    ADDRESS_AT, BLOCK, CHECKSUM_AT, LEASE_BLOCK, STORE_ID_AT, get_u64, page_checksum, put_head, put_u64,
    seal_page,
};

const MAGIC: u64 = u64::from_le_bytes(*b"unstnLSE");

const STATE_AT: usize = 32;
const EPOCH_AT: usize = 40;
const HEARTBEAT_AT: usize = 48;
const OWNER_AT: usize = 56;
const BOOT_AT: usize = 72;
/// Offset of the words: process namespace, pid, start time, T, longest I/O, since, last heartbeat.
const WORDS_AT: usize = 88;
const HOST_LEN_AT: usize = 144;
const HOST_AT: usize = 152;
/// Behind the longest name of a host.
const RESERVES_AT: usize = 408;
/// Longest host name; HOST_NAME_MAX of Linux is 64.
pub(super) const HOST_BYTES_MAX: usize = 255;
/// Greatest bound in milliseconds, so that sums of bounds in nanoseconds stay small.
const BOUND_MS_MAX: u64 = 1 << 32;
/// Greatest counter: at a claim each nanosecond it is reached after a century.
const COUNTER_END: u64 = 1 << 62;

/// State of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// The claim is written and not read again yet: its owner has done no I/O under it.
    Claimed = 1,
    Held = 2,
    Released = 3,
}

/// The opening that owns a lease. All fields but the id are for messages and for the proof that the owner has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// Random number of the opening.
    pub id: u128,
    /// Random number of the start of the host's kernel.
    pub boot_id: u128,
    /// The PID namespace that `pid` belongs to.
    pub process_namespace: u64,
    /// Process ID, in `process_namespace`.
    pub pid: u64,
    /// Start time of the process, in clock ticks since the boot.
    pub started: u64,
    /// Name of the host, at most `HOST_BYTES_MAX` bytes.
    pub host: String,
}

/// The content of a lease's page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeasePage {
    pub store_id: u64,
    pub state: LeaseState,
    pub epoch: u64,
    pub heartbeat: u64,
    pub owner: Owner,
    /// The owner starts no I/O once its last heartbeat is this old, milliseconds.
    pub expiry_ms: u64,
    /// An I/O that the owner started has ended after this time, in milliseconds.
    pub io_max_ms: u64,
    pub since_unix_us: i64,
    pub heartbeat_unix_us: i64,
    /// Owners reserve the device (`reservation.rs`).
    pub reserves: bool,
}

impl LeasePage {
    /// Returns the page of a store that never had a lease: on the medium it is zeros.
    pub(crate) fn unclaimed(store_id: u64) -> LeasePage {
        LeasePage {
            store_id,
            state: LeaseState::Released,
            epoch: 0,
            heartbeat: 0,
            owner: Owner::default(),
            expiry_ms: 1,
            io_max_ms: 1,
            since_unix_us: 0,
            heartbeat_unix_us: 0,
            reserves: false,
        }
    }

    pub(crate) fn encode(&self) -> Buf {
        let mut page = Buf::zeroed(BLOCK as usize);
        put_head(&mut page, MAGIC, self.store_id, LEASE_BLOCK);
        put_u64(&mut page, STATE_AT, self.state as u64);
        put_u64(&mut page, EPOCH_AT, self.epoch);
        put_u64(&mut page, HEARTBEAT_AT, self.heartbeat);
        page[OWNER_AT..OWNER_AT + 16].copy_from_slice(&self.owner.id.to_le_bytes());
        page[BOOT_AT..BOOT_AT + 16].copy_from_slice(&self.owner.boot_id.to_le_bytes());
        let words = [
            self.owner.process_namespace,
            self.owner.pid,
            self.owner.started,
            self.expiry_ms,
            self.io_max_ms,
            self.since_unix_us as u64,
            self.heartbeat_unix_us as u64,
        ];
        for (n, word) in words.into_iter().enumerate() {
            put_u64(&mut page, WORDS_AT + n * 8, word);
        }
        let host = self.owner.host.as_bytes();
        put_u64(&mut page, HOST_LEN_AT, host.len() as u64);
        page[HOST_AT..HOST_AT + host.len()].copy_from_slice(host);
        put_u64(&mut page, RESERVES_AT, u64::from(self.reserves));
        seal_page(&mut page);
        page
    }

    /// Decodes the lease's page of the store `store_id`; `name` is the file's.
    ///
    /// # Errors
    /// `Damaged` with the field, what was found and what was expected.
    pub(crate) fn decode(page: &[u8], store_id: u64, name: &str) -> Result<LeasePage> {
        if page.iter().all(|byte| *byte == 0) {
            return Ok(LeasePage::unclaimed(store_id));
        }
        let place = format!("{name}: lease (block {LEASE_BLOCK})");
        decode(page, store_id).map_err(|cause| Error::damaged(place, cause))
    }
}

fn decode(page: &[u8], store_id: u64) -> Result<LeasePage, String> {
    check_head(page, store_id)?;
    let word = |n: usize| get_u64(page, WORDS_AT + n * 8);
    let state = match get_u64(page, STATE_AT) {
        1 => LeaseState::Claimed,
        2 => LeaseState::Held,
        3 => LeaseState::Released,
        other => return Err(format!("state is {other}, expected 1 to 3")),
    };
    let bounded = |field: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(format!("{field} is {value}, expected {least} to {most}")),
    };
    let host_len =
        bounded("length of the host's name", get_u64(page, HOST_LEN_AT), 0, HOST_BYTES_MAX as u64)?;
    let host = &page[HOST_AT..HOST_AT + host_len as usize];
    let id = |at: usize| u128::from_le_bytes(page[at..at + 16].try_into().expect("sixteen bytes"));
    Ok(LeasePage {
        store_id,
        state,
        epoch: bounded("epoch", get_u64(page, EPOCH_AT), 0, COUNTER_END)?,
        heartbeat: bounded("heartbeat", get_u64(page, HEARTBEAT_AT), 0, COUNTER_END)?,
        owner: Owner {
            id: id(OWNER_AT),
            boot_id: id(BOOT_AT),
            process_namespace: word(0),
            pid: word(1),
            started: word(2),
            host: String::from_utf8(host.to_vec()).map_err(|_| "the host's name is not UTF-8".to_string())?,
        },
        expiry_ms: bounded("T", word(3), 1, BOUND_MS_MAX)?,
        io_max_ms: bounded("longest I/O", word(4), 1, BOUND_MS_MAX)?,
        since_unix_us: word(5) as i64,
        heartbeat_unix_us: word(6) as i64,
        reserves: bounded("reservations", get_u64(page, RESERVES_AT), 0, 1)? == 1,
    })
}

/// Checks the fields that identify a page of this store's lease.
fn check_head(page: &[u8], store_id: u64) -> Result<(), String> {
    let expected = page_checksum(page);
    for (field, found, expected) in [
        ("magic", get_u64(page, 0), MAGIC),
        ("checksum", get_u64(page, CHECKSUM_AT), expected),
        ("store", get_u64(page, STORE_ID_AT), store_id),
        ("its own address", get_u64(page, ADDRESS_AT), LEASE_BLOCK),
    ] {
        if found != expected {
            return Err(format!("{field} is {found:#018x}, expected {expected:#018x}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> LeasePage {
        let owner = Owner {
            id: 1 << 100 | 5,
            boot_id: 77,
            process_namespace: 4_026_531_836,
            pid: 4711,
            started: 12_345,
            host: "esx-01.example".to_string(),
        };
        let first = LeasePage::unclaimed(9);
        LeasePage { state: LeaseState::Held, epoch: 3, heartbeat: 1 << 40, owner, reserves: true, ..first }
    }

    #[test]
    fn a_page_is_read_as_it_was_written_and_fits_one_sector() {
        let host = "h".repeat(HOST_BYTES_MAX);
        for page in [
            sample(),
            LeasePage::unclaimed(9),
            LeasePage { owner: Owner { host, ..sample().owner }, ..sample() },
        ] {
            let bytes = page.encode();
            assert!(bytes[512..].iter().all(|byte| *byte == 0), "a torn write would spoil it");
            assert_eq!(LeasePage::decode(&bytes, 9, "lun").unwrap(), page);
        }
    }

    #[test]
    fn zeros_are_the_page_of_a_store_that_never_had_a_lease() {
        let page = LeasePage::decode(&vec![0; BLOCK as usize], 9, "lun").unwrap();
        assert_eq!(page, LeasePage::unclaimed(9));
        assert_eq!(page.state, LeaseState::Released);
    }

    #[test]
    fn a_page_of_another_store_or_with_invalid_fields_is_refused_by_field() {
        let refused =
            |page: &[u8], store: u64| LeasePage::decode(page, store, "lun").unwrap_err().to_string();
        assert!(refused(&sample().encode(), 8).contains("lun: lease (block 12): store is"));
        assert!(refused(&vec![1; BLOCK as usize], 9).contains("magic"));
        for (at, value, field) in [
            (STATE_AT, 4, "state"),
            (EPOCH_AT, u64::MAX, "epoch"),
            (HEARTBEAT_AT, u64::MAX, "heartbeat"),
            (HOST_LEN_AT, 256, "host's name"),
            (HOST_AT, u64::MAX, "UTF-8"),
            (WORDS_AT + 24, 0, "T is 0"),
            (WORDS_AT + 32, u64::MAX, "longest I/O"),
            (RESERVES_AT, 2, "reservations is 2"),
        ] {
            let mut page = sample().encode();
            put_u64(&mut page, at, value);
            seal_page(&mut page);
            assert!(refused(&page, 9).contains(field), "{field}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(at in 0..4096usize, byte: u8, sealed: bool) {
            let mut page = sample().encode();
            page[at] = byte;
            if sealed {
                seal_page(&mut page);
            }
            let _ = LeasePage::decode(&page, 9, "lun");
        }
    }
}
