use std::cell::RefCell;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Slice};
use sim::Rng;

use super::Workload;
use super::stamps::Stamps;

/// Length of the pattern in a repeating sector, bytes: that of a stamp.
const REPEATED: usize = 32;

/// One disk under load, with the stamps that its sectors must show.
pub(super) struct Target {
    number: u32,
    volume: Rc<dyn Volume>,
    stamps: Option<RefCell<Stamps>>,
    repeating: bool,
    /// Data written where nothing is verified: bytes that neither compress nor repeat within one I/O, or repeating
    /// bytes.
    pattern: RefCell<Slice>,
}

impl Target {
    pub(super) fn new(number: u32, volume: Rc<dyn Volume>, workload: &Workload) -> Target {
        let stamps = workload.verify.then(|| RefCell::new(Stamps::new(number, volume.info().size_bytes)));
        Target {
            number,
            volume,
            stamps,
            repeating: workload.repeating,
            pattern: RefCell::new(Buf::alloc(0).freeze()),
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.volume.info().size_bytes
    }

    /// Reads and checks. `lower_bounds` is a buffer that the caller may reuse for its next reads.
    pub(super) async fn read(
        &self,
        offset: u64,
        buf: Buf,
        lower_bounds: &mut Vec<u32>,
    ) -> (Buf, Result<(), String>) {
        if let Some(stamps) = &self.stamps {
            stamps.borrow().note(offset, buf.len() as u64, lower_bounds);
        }
        let (buf, result) = self.volume.clone().read(offset, buf).await;
        let result = match (result, &self.stamps) {
            (Err(e), _) => Err(format!("disk {}: reading {} bytes at {offset}: {e}", self.number, buf.len())),
            (Ok(()), Some(stamps)) => stamps.borrow().check(offset, &buf, lower_bounds),
            (Ok(()), None) => Ok(()),
        };
        (buf, result)
    }

    pub(super) async fn write(&self, offset: u64, len: u32) -> Result<(), String> {
        let failed = |e| format!("disk {}: writing {len} bytes at {offset}: {e}", self.number);
        let Some(stamps) = &self.stamps else {
            let data = self.pattern(len as usize);
            return self.volume.clone().write(offset, data).await.map_err(failed);
        };
        let mut data = Buf::alloc(len as usize);
        let open = stamps.borrow_mut().begin(offset, &mut data)?;
        let result = self.volume.clone().write(offset, data.freeze()).await;
        stamps.borrow_mut().end(open, offset, u64::from(len));
        result.map_err(failed)
    }

    pub(super) async fn flush(&self) -> Result<(), String> {
        self.volume.clone().flush().await.map_err(|e| format!("disk {}: flushing: {e}", self.number))
    }

    fn pattern(&self, len: usize) -> Slice {
        let mut pattern = self.pattern.borrow_mut();
        if pattern.len() < len {
            let mut bytes = Buf::alloc(len);
            let mut rng = Rng::new(u64::from(self.number));
            if self.repeating {
                let mut unit = [0; REPEATED];
                rng.fill(&mut unit);
                bytes.chunks_mut(REPEATED).for_each(|part| part.copy_from_slice(&unit[..part.len()]));
            } else {
                rng.fill(&mut bytes);
            }
            *pattern = bytes.freeze();
        }
        pattern.slice(0..len)
    }
}
