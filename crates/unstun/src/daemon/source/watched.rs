//! The image of a source as its store reads it: errors instead of data while the image is not available, has changed, or
//! does not answer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

use blk::sync::Signal;
use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, ErrorKind, Local, Result, Slice};
use futures_util::future::{Either, select};

use crate::daemon::source::image::Image;

/// Time after which a request to an image counts as unanswered. Guests give up a request after 30 s or later.
const ANSWER_NS_MAX: u64 = 20_000_000_000;

/// Image that may come and go.
pub(super) struct WatchedImage {
    env: Env,
    uri: String,
    size_bytes: u64,
    state: RefCell<State>,
    /// What will make the image unavailable when the daemon is started again.
    warning: RefCell<Option<String>>,
    /// Notified when the state has changed.
    changed: Signal,
    /// Time at which each request under way began, by its number.
    under_way: RefCell<BTreeMap<u64, u64>>,
    numbered: Cell<u64>,
}

#[derive(Clone)]
enum State {
    Open(Rc<Image>),
    /// Why it cannot be read.
    Away(Error),
}

/// A request, until its caller has the answer or waits no more.
struct UnderWay<'a> {
    image: &'a WatchedImage,
    number: u64,
}

impl UnderWay<'_> {
    fn begin(image: &WatchedImage) -> UnderWay<'_> {
        image.numbered.update(|number| number + 1);
        let number = image.numbered.get();
        image.under_way.borrow_mut().insert(number, image.env.now_ns());
        UnderWay { image, number }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.image.under_way.borrow_mut().remove(&self.number);
    }
}

impl WatchedImage {
    pub(super) fn open(env: &Env, uri: &str, image: Image) -> Rc<WatchedImage> {
        WatchedImage::new(env, uri, image.size_bytes(), State::Open(Rc::new(image)))
    }

    pub(super) fn away(env: &Env, uri: &str, size_bytes: u64) -> Rc<WatchedImage> {
        let cause = Error::new(ErrorKind::Io, uri, "the image of this source is being opened");
        WatchedImage::new(env, uri, size_bytes, State::Away(cause))
    }

    fn new(env: &Env, uri: &str, size_bytes: u64, state: State) -> Rc<WatchedImage> {
        Rc::new(WatchedImage {
            env: env.clone(),
            uri: uri.to_owned(),
            size_bytes,
            state: RefCell::new(state),
            warning: RefCell::default(),
            changed: Signal::default(),
            under_way: RefCell::default(),
            numbered: Cell::new(0),
        })
    }

    /// Returns why the image cannot be read; None if it can.
    pub(super) fn cause(&self) -> Option<Error> {
        match &*self.state.borrow() {
            State::Open(_) => None,
            State::Away(cause) => Some(cause.clone()),
        }
    }

    /// Returns the image, if it can be read.
    pub(super) fn current(&self) -> Option<Rc<Image>> {
        match &*self.state.borrow() {
            State::Open(image) => Some(image.clone()),
            State::Away(_) => None,
        }
    }

    /// Returns what a user should know of an image that can be read.
    pub(super) fn warning(&self) -> Option<String> {
        self.warning.borrow().clone()
    }

    /// Looks at the files of an open image, whether or not it is being read. May take long if a file system hangs.
    pub(super) async fn look(&self) {
        let State::Open(image) = self.state.borrow().clone() else { return };
        if let Some(cause) = image.gone() {
            return self.has_gone(&image, cause);
        }
        if let Err(change) = image.files.verify().await {
            return self.has_gone(&image, change);
        }
        let warning = image.files.replaced(&self.env).await.map(|path| {
            format!("{path} was removed or replaced; the image can be read until the daemon ends, so copy it before")
        });
        *self.warning.borrow_mut() = warning;
    }

    /// Reads are answered from the image again. One that can be read stays: requests to it are under way.
    pub(super) fn has_come(&self, image: Image) {
        if self.cause().is_none() {
            return;
        }
        let found = image.size_bytes();
        if found == self.size_bytes {
            return self.set(State::Open(Rc::new(image)));
        }
        let cause = format!("the image has {found} bytes, expected {}", self.size_bytes);
        let cause = format!("{cause}; it is not the one that the disk was made over");
        self.is_away(Error::damaged(&self.uri, cause));
    }

    /// Reads are errors from now on, if this image is still the one that is read.
    fn has_gone(&self, image: &Rc<Image>, cause: Error) {
        let is_read = matches!(&*self.state.borrow(), State::Open(now) if Rc::ptr_eq(now, image));
        if is_read {
            self.is_away(cause);
        }
    }

    /// Reads are errors from now on, those under way included.
    pub(super) fn is_away(&self, cause: Error) {
        self.set(State::Away(cause));
    }

    fn set(&self, state: State) {
        *self.state.borrow_mut() = state;
        self.changed.notify();
    }

    /// Gives the image up if it has not answered a request for long.
    pub(super) fn give_up_unanswered(&self) {
        let oldest_ns = self.under_way.borrow().values().copied().min();
        let age_ns = oldest_ns.map_or(0, |since_ns| self.env.now_ns().saturating_sub(since_ns));
        if age_ns >= ANSWER_NS_MAX && self.cause().is_none() {
            let cause = format!("the image has not answered a request for {} s", age_ns / 1_000_000_000);
            self.is_away(Error::new(ErrorKind::Io, &self.uri, cause));
        }
    }

    /// Carries out a request on the image, and then makes sure that the image has not changed. Ends early if it is given
    /// up. The request is a task of its own: nothing can end a call that a file system does not answer.
    async fn guarded<T: 'static>(
        &self,
        request: impl AsyncFnOnce(Rc<dyn Volume>) -> Result<T> + 'static,
    ) -> Result<T> {
        let image = match self.state.borrow().clone() {
            State::Open(image) => image,
            State::Away(cause) => return Err(cause),
        };
        let _under_way = UnderWay::begin(self);
        let asked = image.clone();
        let task = self.env.spawn(async move {
            let answer = request(asked.volume.clone()).await?;
            Ok((answer, asked.files.verify().await))
        });
        let answered = match select(pin!(task.join()), pin!(self.until_away(&image))).await {
            Either::Left((answered, _)) => answered,
            Either::Right((cause, _)) => Err(cause),
        };
        let (answer, verified) = answered.inspect_err(|_| {
            if let Some(cause) = image.gone() {
                self.has_gone(&image, cause);
            }
        })?;
        if let Err(change) = verified {
            self.has_gone(&image, change.clone());
            return Err(change);
        }
        Ok(answer)
    }

    async fn until_away(&self, image: &Rc<Image>) -> Error {
        loop {
            let changed = self.changed.wait();
            match &*self.state.borrow() {
                State::Open(now) if Rc::ptr_eq(now, image) => {}
                State::Open(_) => return Error::new(ErrorKind::Io, &self.uri, "the image was opened anew"),
                State::Away(cause) => return cause.clone(),
            }
            changed.await;
        }
    }
}

fn refuse(uri: &str) -> Local<'static, Result<()>> {
    let error = Error::refused(uri, "the image below a disk is never written");
    Box::pin(async { Err(error) })
}

impl Volume for WatchedImage {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { size_bytes: self.size_bytes, read_only: true, preferred_bytes: 4096, fast_zero: false }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            let len = buf.len();
            let request = async move |volume: Rc<dyn Volume>| {
                let (buf, result) = volume.read(offset, buf).await;
                result.map(|()| buf)
            };
            match self.guarded(request).await {
                Ok(buf) => (buf, Ok(())),
                Err(e) => (Buf::alloc(len), Err(e)),
            }
        })
    }

    fn write(self: Rc<Self>, _offset: u64, _data: Slice) -> Local<'static, Result<()>> {
        refuse(&self.uri)
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(self: Rc<Self>, _range: Range<u64>, _mode: ZeroMode) -> Local<'static, Result<()>> {
        refuse(&self.uri)
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(
            async move { self.guarded(async move |volume: Rc<dyn Volume>| volume.status(range).await).await },
        )
    }
}

#[cfg(test)]
mod tests {
    use sim::SimWorld;

    use super::*;

    /// An image whose reads end when the test says so.
    #[derive(Default)]
    struct Slow {
        answers: Cell<bool>,
        signal: Signal,
    }

    impl Volume for Slow {
        fn info(&self) -> VolumeInfo {
            VolumeInfo { size_bytes: 1 << 20, read_only: true, preferred_bytes: 4096, fast_zero: false }
        }

        fn read(self: Rc<Self>, _offset: u64, mut buf: Buf) -> Local<'static, (Buf, Result<()>)> {
            Box::pin(async move {
                while !self.answers.get() {
                    self.signal.wait().await;
                }
                buf.fill(7);
                (buf, Ok(()))
            })
        }

        fn write(self: Rc<Self>, _offset: u64, _data: Slice) -> Local<'static, Result<()>> {
            refuse("slow")
        }

        fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
            refuse("slow")
        }

        fn write_zeroes(self: Rc<Self>, _range: Range<u64>, _mode: ZeroMode) -> Local<'static, Result<()>> {
            refuse("slow")
        }
    }

    #[test]
    fn an_image_that_does_not_answer_is_given_up_and_comes_back() {
        let world = SimWorld::new(1, sim::Options::default());
        let done = world.run(|env| async move {
            let slow = Rc::new(Slow::default());
            let watched = WatchedImage::open(&env, "/slow", Image::of(slow.clone()));
            let read = |watched: &Rc<WatchedImage>| watched.clone().read(0, Buf::zeroed(512));
            let reading = env.spawn(read(&watched));
            env.sleep_us(ANSWER_NS_MAX / 1000 - 1_000_000).await;
            watched.give_up_unanswered();
            assert_eq!(watched.cause(), None, "it is not late yet");
            env.sleep_us(1_000_000).await;
            watched.give_up_unanswered();
            let (buf, result) = reading.join().await;
            assert!(result.unwrap_err().cause.contains("not answered") && buf.len() == 512);
            // Others are not held up.
            assert!(read(&watched).await.1.is_err());
            slow.answers.set(true);
            slow.signal.notify();
            // A caller that waits no more leaves no request behind.
            let stuck = WatchedImage::open(&env, "/stuck", Image::of(Rc::new(Slow::default())));
            drop(select(pin!(read(&stuck)), pin!(env.sleep_us(1000))).await);
            env.sleep_us(2 * ANSWER_NS_MAX / 1000).await;
            stuck.give_up_unanswered();
            assert_eq!(stuck.cause(), None);
            let other = Rc::new(Slow::default());
            other.answers.set(true);
            watched.has_come(Image::of(other));
            let (buf, result) = read(&watched).await;
            assert!(result.is_ok() && buf.iter().all(|byte| *byte == 7));
            // An image that comes while one is read changes nothing.
            watched.has_come(Image::of(Rc::new(Slow::default())));
            assert!(read(&watched).await.1.is_ok());
            let small = WatchedImage::away(&env, "/slow", 1 << 19);
            small.has_come(Image::of(slow));
            assert!(read(&small).await.1.unwrap_err().cause.contains("expected 524288"), "another size");
        });
        done.expect("nothing cuts the power");
    }
}
