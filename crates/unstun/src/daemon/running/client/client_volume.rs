//! The volume that one connection to a running disk sees.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::pin;
use std::rc::{Rc, Weak};

use blk::sync::{Admitted, Signal};
use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, Local, Result, Slice};
use futures_util::future::{Either, select};

use crate::daemon::running::client::switchable_volume::{Access, Switch};
use crate::daemon::running::client::writers::DiskClient;

/// Time in microseconds between two attempts of a change that waits for space.
const SPACE_RETRY_US: u64 = 250_000;

/// Change of a disk that waits for space.
struct Waiting {
    switch: Rc<Switch>,
    client: Rc<DiskClient>,
}

impl Waiting {
    fn begin(switch: &Rc<Switch>, client: &Rc<DiskClient>) -> Waiting {
        if switch.begin_wait() {
            client.control.space(&client.vm, &client.disk, true);
        }
        Waiting { switch: switch.clone(), client: client.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.switch.end_wait() {
            self.client.control.space(&self.client.vm, &self.client.disk, false);
        }
    }
}

/// Where the requests of a connection go.
enum Route {
    /// To the disk, which is on the connection's core.
    Disk(Rc<Switch>),
    /// Nowhere yet: the VM is changing its core.
    Held(Rc<Switch>),
    /// To the client's volume on the VM's core. Nothing here keeps the files of the VM that was on this core open.
    Relayed(Rc<dyn Volume>),
}

/// Where one request goes.
struct Target {
    volume: Rc<dyn Volume>,
    /// None where the VM's core counts the request.
    here: Option<Here>,
}

/// One request to a disk on the connection's core.
struct Here {
    switch: Rc<Switch>,
    /// Counts the request among those of the disk.
    admitted: Admitted,
}

/// One connection's view of a running disk.
///
/// A change that finds no space waits here and holds no resource of the disk. Operations that free space can therefore
/// pass, a move can take the VM to another datastore, and the wait ends with its client.
pub(crate) struct ClientVolume {
    env: Env,
    client: Rc<DiskClient>,
    /// Whether the connection holds the claim; no further check is needed then.
    may_write: Cell<bool>,
    /// Whether the connection has closed.
    gone: Cell<bool>,
    /// Number of times that the waits for space were ended; a request that began before does not wait again.
    ended_waits: Cell<u64>,
    left: Signal,
    route: RefCell<Route>,
    /// Signals that held requests may go on.
    released: Signal,
}

/// The open connections to the running disks of a VM.
#[derive(Default)]
pub(crate) struct Connections(RefCell<Vec<Weak<ClientVolume>>>);

impl Connections {
    pub(crate) fn add(&self, connection: &Rc<ClientVolume>) {
        let mut all = self.0.borrow_mut();
        all.retain(|known| known.strong_count() > 0);
        all.push(Rc::downgrade(connection));
    }

    pub(crate) fn all(&self) -> Vec<Rc<ClientVolume>> {
        self.0.borrow().iter().filter_map(Weak::upgrade).collect()
    }
}

impl ClientVolume {
    pub(crate) fn new(env: Env, switch: Rc<Switch>, client: Rc<DiskClient>) -> Rc<ClientVolume> {
        Rc::new(ClientVolume {
            env,
            client,
            may_write: Cell::new(false),
            gone: Cell::new(false),
            ended_waits: Cell::new(0),
            left: Signal::default(),
            route: RefCell::new(Route::Disk(switch)),
            released: Signal::default(),
        })
    }

    pub(crate) fn client(&self) -> &DiskClient {
        &self.client
    }

    /// Holds back all requests from now on. Resolves when no change or read of the disk is under way any more: what
    /// waits for space is not.
    pub(crate) fn hold(&self) -> impl Future<Output = ()> + use<> {
        let switch = self.switch();
        if let Some(switch) = &switch {
            self.route.replace(Route::Held(switch.clone()));
        }
        async move {
            if let Some(switch) = switch {
                switch.drain().await;
            }
        }
    }

    /// Lets held requests go to the disk again.
    pub(crate) fn release(&self) {
        let held = match &*self.route.borrow() {
            Route::Held(switch) => switch.clone(),
            Route::Disk(_) | Route::Relayed(_) => return,
        };
        self.go_on(Route::Disk(held));
    }

    /// Lets held requests, and all later ones, go to the client's volume on another core.
    pub(crate) fn relay_to(&self, volume: Rc<dyn Volume>) {
        if self.gone.get() {
            volume.abandon();
        }
        self.go_on(Route::Relayed(volume));
    }

    fn go_on(&self, route: Route) {
        self.route.replace(route);
        self.released.notify();
    }

    /// Returns where a request goes, as soon as it may go anywhere.
    async fn target(&self) -> Target {
        loop {
            match &*self.route.borrow() {
                Route::Disk(switch) => {
                    let (admitted, volume) = switch.enter();
                    return Target { volume, here: Some(Here { switch: switch.clone(), admitted }) };
                }
                Route::Relayed(volume) => return Target { volume: volume.clone(), here: None },
                Route::Held(_) => {}
            }
            self.released.wait().await;
        }
    }

    fn relayed(&self) -> Option<Rc<dyn Volume>> {
        match &*self.route.borrow() {
            Route::Relayed(volume) => Some(volume.clone()),
            Route::Disk(_) | Route::Held(_) => None,
        }
    }

    fn switch(&self) -> Option<Rc<Switch>> {
        match &*self.route.borrow() {
            Route::Disk(switch) | Route::Held(switch) => Some(switch.clone()),
            Route::Relayed(_) => None,
        }
    }

    fn change(
        self: Rc<Self>,
        on: impl Fn(Rc<dyn Volume>) -> Local<'static, Result<()>> + 'static,
    ) -> Local<'static, Result<()>> {
        Box::pin(async move {
            let target = self.target().await;
            // The VM's core decides for a relayed client.
            if target.here.is_some() && !self.may_write.get() {
                self.client.claim()?;
                self.may_write.set(true);
            }
            self.when_space(target, on).await
        })
    }

    /// Runs `on`, for which a guest waits. If the disk has no space, repeats `on` as the VM's policy says.
    async fn when_space(
        self: Rc<Self>,
        mut target: Target,
        on: impl Fn(Rc<dyn Volume>) -> Local<'static, Result<()>>,
    ) -> Result<()> {
        let (mut waiting, mut may_be_made) = (None, true);
        let began = self.ended_waits.get();
        loop {
            let Target { volume, here } = target;
            let Some(Here { switch, admitted }) = here else {
                // If there is no space, the request waits on the VM's core.
                drop(waiting);
                return on(volume).await;
            };
            let result = on(volume).await;
            drop(admitted);
            if may_be_made && result.as_ref().is_err_and(Error::is_no_space) && self.may_wait(began) {
                let left = pin!(self.left.wait());
                let room = pin!(self.client.control.make_room(&self.client.vm));
                may_be_made = matches!(select(left, room).await, Either::Right((true, _)));
                if may_be_made {
                    target = self.target().await;
                    continue;
                }
            }
            if !result.as_ref().is_err_and(|e| self.waits_after(e, began)) {
                return result;
            }
            waiting.get_or_insert_with(|| Waiting::begin(&switch, &self.client));
            select(pin!(self.left.wait()), pin!(self.env.sleep_us(SPACE_RETRY_US))).await;
            target = self.target().await;
        }
    }

    fn waits_after(&self, error: &Error, began: u64) -> bool {
        error.is_no_space() && self.client.gate.guests.waits_for_space.get() && self.may_wait(began)
    }

    fn may_wait(&self, began: u64) -> bool {
        !self.gone.get() && self.ended_waits.get() == began
    }
}

impl Volume for ClientVolume {
    fn info(&self) -> VolumeInfo {
        let info = match &*self.route.borrow() {
            Route::Relayed(relayed) => return relayed.info(),
            Route::Disk(switch) | Route::Held(switch) => switch.current().info(),
        };
        let refused = self.client.guest.access.get() == Access::ReadOnly;
        VolumeInfo { read_only: info.read_only || refused, ..info }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            let Target { volume, here } = self.target().await;
            let read = volume.read(offset, buf).await;
            drop(here);
            read
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        self.change(move |disk| disk.write(offset, data.clone()))
    }

    /// Flushes the disk. A flush writes tables, which may find no space where nothing is overwritten in place.
    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            let target = self.target().await;
            self.when_space(target, |disk| disk.flush()).await
        })
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        self.change(move |disk| disk.discard(range.clone()))
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        self.change(move |disk| disk.write_zeroes(range.clone(), mode))
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move {
            let Target { volume, here } = self.target().await;
            let status = volume.status(range).await;
            drop(here);
            status
        })
    }

    fn abandon(&self) {
        self.gone.set(true);
        self.left.notify();
        if let Some(relayed) = self.relayed() {
            relayed.abandon();
        }
    }

    fn end_waits(&self) {
        self.ended_waits.update(|n| n + 1);
        self.left.notify();
        if let Some(relayed) = self.relayed() {
            relayed.end_waits();
        }
    }
}
