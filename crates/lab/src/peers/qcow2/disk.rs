//! A raw file with overlays on top: the guest's I/O through the chain.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::{Buf, File, Local, Result, Slice};
use futures_util::future::join_all;

use super::dirty::Dirty;
use super::image::{Image, Part, len};
use super::layout::Layout;
use crate::peers::vm::{Disk, Vm};
use crate::subject::LayerSeen;
use crate::vmware::host::Purpose;

/// Longest data between two parts of a cluster that are read with one request for both. Source: QEMU
/// `block/qcow2-cluster.c`, perform_cow.
pub(super) const MERGED_READ_BYTES: u64 = 16 << 10;

pub(super) struct Qcow2Disk {
    pub vm: Rc<Vm>,
    number: usize,
    layout: Layout,
    pub size_bytes: u64,
    pub base: File,
    /// Oldest first. Replaced only while the gate is closed.
    images: RefCell<Rc<Vec<Rc<Image>>>>,
    /// The image that the next take adds.
    next: RefCell<Option<Rc<Image>>>,
    made: Cell<u64>,
    /// What a commit of the topmost image has to copy.
    pub dirty: RefCell<Option<Dirty>>,
}

impl Qcow2Disk {
    pub(super) async fn create(
        vm: Rc<Vm>,
        number: usize,
        layout: Layout,
        size_bytes: u64,
    ) -> Result<Qcow2Disk> {
        let base = vm.create_file(&format!("disk{number}.raw")).await?;
        base.set_len(size_bytes).await?;
        Ok(Qcow2Disk {
            vm,
            number,
            layout,
            size_bytes,
            base,
            images: RefCell::default(),
            next: RefCell::default(),
            made: Cell::new(0),
            dirty: RefCell::default(),
        })
    }

    pub(super) fn images(&self) -> Rc<Vec<Rc<Image>>> {
        self.images.borrow().clone()
    }

    /// Removes an image from the chain. The gate is closed.
    pub(super) fn remove_image(&self, level: usize) -> Rc<Image> {
        let mut images = (*self.images()).clone();
        let removed = images.remove(level);
        *self.images.borrow_mut() = Rc::new(images);
        removed
    }

    /// Makes the chain of these images durable at its top.
    pub(super) async fn flush_images(&self, images: &[Rc<Image>]) -> Result<()> {
        match images.last() {
            Some(image) => image.flush().await,
            None => self.vm.host.flush(&self.base).await,
        }
    }

    /// Reads through a chain: each image is searched, newest first, and the rest is read from the base.
    pub(super) fn read_chain<'a>(
        &'a self,
        images: &'a [Rc<Image>],
        offset: u64,
        buf: Buf,
        purpose: Purpose,
    ) -> Local<'a, (Buf, Result<()>)> {
        Box::pin(async move {
            let range = offset..offset + buf.len() as u64;
            for (below, image) in images.iter().enumerate().rev() {
                let own = image.lock.lock().await;
                let looked = image.look_up(&range).await;
                drop(own);
                if looked.is_err() {
                    return (buf, looked);
                }
                let found = image.find(&range);
                match found.at {
                    _ if found.len < len(&range) => {
                        return self.read_parts(&images[..=below], offset, buf, purpose).await;
                    }
                    Some(at) => return self.vm.host.read(&image.file, at, buf, purpose).await,
                    None => {}
                }
            }
            self.vm.host.read(&self.base, offset, buf, purpose).await
        })
    }

    /// Reads a range that the topmost image does not hold contiguously, part by part and concurrently.
    async fn read_parts(
        &self,
        images: &[Rc<Image>],
        offset: u64,
        mut buf: Buf,
        purpose: Purpose,
    ) -> (Buf, Result<()>) {
        let (top, below) = images.split_last().expect("an image divides the range");
        let (mut reads, mut places, mut at) = (Vec::new(), Vec::new(), 0);
        while at < buf.len() {
            let start = offset + at as u64;
            let found = top.find(&(start..offset + buf.len() as u64));
            let part = Buf::alloc(found.len as usize);
            reads.push(match found.at {
                Some(place) => Box::pin(self.vm.host.read(&top.file, place, part, purpose)) as Local<'_, _>,
                None => self.read_chain(below, start, part, purpose),
            });
            places.push(at);
            at += found.len as usize;
        }
        for (at, (part, result)) in places.into_iter().zip(join_all(reads).await) {
            if result.is_err() {
                return (buf, result);
            }
            buf[at..at + part.len()].copy_from_slice(&part);
        }
        (buf, Ok(()))
    }

    /// Writes into the topmost of these images, or into the base.
    pub(super) async fn write_chain(
        &self,
        images: &[Rc<Image>],
        offset: u64,
        data: Slice,
        purpose: Purpose,
    ) -> Result<()> {
        let Some((image, below)) = images.split_last() else {
            return self.vm.host.write(&self.base, offset, data, purpose).await;
        };
        let range = offset..offset + data.len() as u64;
        let _alone = match image.holds(&range) {
            true => None,
            false => Some(image.allocating.lock(image.allocation(&range)).await),
        };
        let own = image.lock.lock().await;
        image.look_up(&range).await?;
        let parts = image.plan(&range).await?;
        drop(own);
        let writes = parts.into_iter().map(|part| {
            let inside = part.range.start.max(offset)..part.range.end.min(range.end);
            let of_data = (inside.start - offset) as usize..(inside.end - offset) as usize;
            self.write_part(image, below, part, inside.start, data.slice(of_data), purpose)
        });
        join_all(writes).await.into_iter().collect()
    }

    async fn write_part(
        &self,
        image: &Image,
        below: &[Rc<Image>],
        part: Part,
        offset: u64,
        data: Slice,
        purpose: Purpose,
    ) -> Result<()> {
        if !part.new {
            return self.vm.host.write(&image.file, part.at, data, purpose).await;
        }
        let whole = self.completed(below, &part.range, offset, data, purpose).await?;
        self.vm.host.write(&image.file, part.at, whole, purpose).await?;
        let _own = image.lock.lock().await;
        image.link(&part).await
    }

    /// Completes a write to whole units: the rest of the first and of the last unit is read from below.
    async fn completed(
        &self,
        below: &[Rc<Image>],
        range: &Range<u64>,
        offset: u64,
        data: Slice,
        purpose: Purpose,
    ) -> Result<Slice> {
        let end = offset + data.len() as u64;
        let (head, tail) = (range.start..offset, end..range.end);
        if head.is_empty() && tail.is_empty() {
            return Ok(data);
        }
        let merged = !head.is_empty() && !tail.is_empty() && data.len() as u64 <= MERGED_READ_BYTES;
        let reads = if merged { vec![range.clone()] } else { vec![head, tail] };
        let mut whole = Buf::alloc(len(range) as usize);
        for read in reads.into_iter().filter(|read| !read.is_empty()) {
            // The disk may end within a unit.
            let read = read.start..read.end.min(self.size_bytes).max(read.start);
            let at = (read.start - range.start) as usize;
            let (part, result) =
                self.read_chain(below, read.start, Buf::alloc(len(&read) as usize), purpose).await;
            result?;
            whole[at..at + part.len()].copy_from_slice(&part);
        }
        let at = (offset - range.start) as usize;
        whole[at..at + data.len()].copy_from_slice(&data);
        Ok(whole.freeze())
    }
}

impl Disk for Qcow2Disk {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)> {
        Box::pin(async move {
            let images = self.images();
            self.read_chain(&images, offset, buf, Purpose::Guest).await
        })
    }

    fn write(&self, offset: u64, data: Slice) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let range = offset..offset + data.len() as u64;
            let images = self.images();
            let written = self.write_chain(&images, offset, data, Purpose::Guest).await;
            // A write that ended makes its part dirty, whatever has been copied meanwhile.
            if let Some(dirty) = self.dirty.borrow_mut().as_mut() {
                dirty.set(&range);
            }
            written
        })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let images = self.images();
            self.flush_images(&images).await
        })
    }

    /// Creates the overlay (`qemu-img create`, then blockdev-add).
    fn prepare(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.made.set(self.made.get() + 1);
            let name = format!("disk{}-{}.qcow2", self.number, self.made.get());
            let image = Image::create(self.vm.clone(), name, self.layout, self.size_bytes).await?;
            *self.next.borrow_mut() = Some(image);
            Ok(())
        })
    }

    /// Flushes the present top, and puts the overlay over it (blockdev-snapshot).
    fn take(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let mut images = (*self.images()).clone();
            self.flush_images(&images).await?;
            images.extend(self.next.take());
            *self.images.borrow_mut() = Rc::new(images);
            Ok(())
        })
    }

    fn commit(&self, number: usize) -> Local<'_, Result<()>> {
        Box::pin(async move {
            match number + 1 == self.images().len() {
                true => self.commit_active(number).await,
                false => self.commit_lower(number).await,
            }
        })
    }

    fn read_frozen(&self, number: usize, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)> {
        Box::pin(async move {
            let images = self.images();
            self.read_chain(&images[..number], offset, buf, Purpose::Guest).await
        })
    }

    fn layers(&self) -> Vec<LayerSeen> {
        let images = self.images();
        let files = std::iter::once(&self.base).chain(images.iter().map(|image| &image.file));
        let seen = |(height, file): (u32, &File)| LayerSeen {
            name: format!("disk{}/{}", self.number, file.name()),
            height,
            host: file.counters().into(),
        };
        (0..).zip(files).map(seen).collect()
    }
}
