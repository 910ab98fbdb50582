//! A directory. Changes of its names are durable only after `sync`.

use std::rc::Rc;

use crate::buf::Buf;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::exec::Env;
use crate::file::{File, Lock};
use crate::reactor::{Handle, Limits, Op, OpenMode, Outcome, Pending, Space};

/// Suffix of a file that is written before it is renamed to its final name. After a crash such a file is debris.
pub const TEMPORARY_SUFFIX: &str = ".unstun-tmp";

/// Folder for files of unstun. In a datastore it contains everything that is not a VM's home; in each home, the records
/// about the VM. See `Dir::trust_owner`.
pub const OWN_FOLDER: &str = ".unstun";

/// Longest wait for the blocks of removed files. A file system frees some 100 GB in this time.
const FREEING_WAIT_NS: u64 = 2_000_000_000;
const FREEING_LOOK_US: u64 = 5000;

/// A cheap, shareable handle of a directory. The names passed to it are single components; a name with a path separator
/// is refused.
#[derive(Clone)]
pub struct Dir(Rc<Inner>);

struct Inner {
    env: Env,
    handle: Handle,
    path: String,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.env.close(self.handle);
    }
}

impl Env {
    /// The directory a datastore or folder lives in; everything else is opened relative to it.
    pub fn open_root(&self, path: &str) -> Result<Dir> {
        let handle = self.reactor.open_root(path).map_err(|e: Errno| e.at(path, "opening the folder"))?;
        Ok(Dir::new(self.clone(), handle, path.to_string()))
    }

    /// Opens a directory by path. A file system that does not answer delays this task alone.
    pub async fn open_path(&self, path: &str) -> Result<Dir> {
        let Some(token) = self.reactor.submit_open_root(path) else { return self.open_root(path) };
        let Outcome::Opened(opened) = self.outcome_of(token).await else {
            unreachable!("answers with a handle")
        };
        let (handle, _) = opened.map_err(|e: Errno| e.at(path, "opening the folder"))?;
        Ok(Dir::new(self.clone(), handle, path.to_string()))
    }
}

impl Dir {
    pub(crate) fn new(env: Env, handle: Handle, path: String) -> Dir {
        Dir(Rc::new(Inner { env, handle, path }))
    }

    /// Returns the core that the directory was opened on.
    pub fn env(&self) -> &Env {
        &self.0.env
    }

    /// Returns the path as it was given when the directory was opened; for messages only.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// Returns the path of `name` in this directory, for messages.
    pub fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.0.path)
    }

    fn check_name(&self, name: &str) -> Result<String> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || name.len() > 255 {
            return Err(Error::refused(
                self.path(),
                format!(
                    "{name:?} is not the name of a file in this folder (one component of 1 to 255 bytes)"
                ),
            ));
        }
        Ok(name.to_string())
    }

    /// Opens the file `name` for the transfers that `mode` admits.
    ///
    /// # Errors
    ///
    /// `NotFound` for an absent name, `Exists` for a taken one with `CreateNew`, `Refused` for a name of
    /// several components, `NoDescriptors` where the process or the host has none left.
    pub async fn open(&self, name: &str, mode: OpenMode) -> Result<File> {
        let op = Op::OpenFile { dir: self.0.handle, name: self.check_name(name)?, mode };
        let doing = match mode {
            OpenMode::CreateNew => "creating",
            _ => "opening",
        };
        let (handle, limits) = self.opened(op, name, doing).await?;
        Ok(File::new(self.0.env.clone(), handle, self.path_of(name), limits))
    }

    /// Creates the file `name`. Fails with `Exists` if the name is taken.
    pub async fn create_new(&self, name: &str) -> Result<File> {
        self.open(name, OpenMode::CreateNew).await
    }

    /// Opens the subdirectory `name`. With `create`, creates it if it is absent.
    ///
    /// # Errors
    ///
    /// `NotFound` for an absent name without `create`, and `Refused` as described at [`Dir::trust_owner`].
    pub async fn open_dir(&self, name: &str, create: bool) -> Result<Dir> {
        let op = Op::OpenDir { dir: self.0.handle, name: self.check_name(name)?, create };
        let (handle, _) = self.opened(op, name, "opening the folder").await?;
        Ok(Dir::new(self.0.env.clone(), handle, self.path_of(name)))
    }

    /// Trusts the owner of this folder. Before the first call, every folder is opened. After it, a folder named
    /// `OWN_FOLDER` is opened only if its owner is trusted: root, the user of this process, the user `nobody` (file
    /// servers show root as this user), and the owners from these calls. The reason is that the records in it decide
    /// which files are written and removed, and that the owner of a home can replace it.
    ///
    /// # Errors
    ///
    /// Errors of the query for the owner. `open_dir` fails with `Refused` for any other owner.
    pub fn trust_owner(&self) -> Result<()> {
        self.0.env.trust_owner(self.0.handle).map_err(|e| e.at(self.path(), "asking for its owner"))
    }

    async fn opened(&self, op: Op, name: &str, doing: &str) -> Result<(Handle, Limits)> {
        let Outcome::Opened(result) = self.0.env.op(op).await else { unreachable!("answers with a handle") };
        result.map_err(|e: Errno| e.at(self.path_of(name), doing))
    }

    /// Takes the exclusive lock `name`, or fails with `Locked`.
    pub async fn lock(&self, name: &str) -> Result<Lock> {
        let op = Op::Lock { dir: self.0.handle, name: self.check_name(name)? };
        let (handle, _) = self.opened(op, name, "locking").await?;
        Ok(Lock::new(self.0.env.clone(), handle))
    }

    async fn unit(&self, op: Op, name: &str, doing: &str) -> Result<()> {
        let Outcome::Unit(result) = self.0.env.op(op).await else { unreachable!("answers with a unit") };
        result.map_err(|e: Errno| e.at(self.path_of(name), doing))
    }

    /// Renames the file `from` to `to` within this directory, and replaces a file of that name atomically.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let op = Op::Rename { dir: self.0.handle, from: self.check_name(from)?, to: self.check_name(to)? };
        self.unit(op, from, &format!("renaming to {to}")).await
    }

    /// Gives the file `from` a second name in `to_dir`. Fails with `Exists` if that name is taken, and also where the
    /// file system has no second names.
    pub async fn link(&self, from: &str, to_dir: &Dir, to: &str) -> Result<()> {
        let (from_name, to_name) = (self.check_name(from)?, self.check_name(to)?);
        let op = Op::Link { dir: self.0.handle, from: from_name, to_dir: to_dir.0.handle, to: to_name };
        self.unit(op, from, &format!("giving it the name {}", to_dir.path_of(to))).await
    }

    /// Removes the name of a file. Its space is freed after the last handle is closed, possibly with a delay; see
    /// [`Dir::space`].
    pub async fn unlink(&self, name: &str) -> Result<()> {
        let op = Op::Unlink { dir: self.0.handle, name: self.check_name(name)? };
        self.unit(op, name, "removing").await
    }

    /// Removes the name of a file, which may be absent.
    pub async fn unlink_if_present(&self, name: &str) -> Result<()> {
        match self.unlink(name).await {
            Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes the empty subdirectory `name`.
    pub async fn remove_dir(&self, name: &str) -> Result<()> {
        let op = Op::RemoveDir { dir: self.0.handle, name: self.check_name(name)? };
        self.unit(op, name, "removing the folder").await
    }

    /// Makes durable every change of names in this directory that completed before the call.
    pub async fn sync(&self) -> Result<()> {
        self.unit(Op::SyncDir { dir: self.0.handle }, "", "syncing the folder").await
    }

    /// Returns the names in this directory, sorted. Names of folders end with a slash.
    pub async fn list(&self) -> Result<Vec<String>> {
        let Outcome::Names(result) = self.0.env.op(Op::List { dir: self.0.handle }).await else {
            unreachable!("answers with names")
        };
        result.map_err(|e| e.at(self.path(), "listing the folder"))
    }

    /// Returns the oldest call that the folder's file system has not answered, where a file system may hang.
    pub fn pending(&self) -> Option<Pending> {
        self.0.env.pending(self.0.handle)
    }

    /// Returns the space of the file system. Waits a little for blocks of removed files, and counts those that are not
    /// free by then as free: space that was made by removing files is available even if the file system frees it
    /// slowly.
    pub async fn space(&self) -> Result<Space> {
        let env = self.env();
        let until_ns = env.now_ns() + FREEING_WAIT_NS;
        loop {
            let space = self.space_now().await?;
            if space.freeing_bytes == 0 {
                return Ok(space);
            }
            if env.now_ns() >= until_ns {
                let free_bytes = space.free_bytes.saturating_add(space.freeing_bytes).min(space.total_bytes);
                return Ok(Space { free_bytes, ..space });
            }
            env.sleep_us(FREEING_LOOK_US).await;
        }
    }

    /// Waits a little until the blocks of removed files are free, before an operation that found no space is repeated.
    pub async fn wait_for_freed(&self) {
        // An error will occur again in the repeated operation.
        let _ = self.space().await;
    }

    async fn space_now(&self) -> Result<Space> {
        let Outcome::Space(result) = self.0.env.op(Op::Space { dir: self.0.handle }).await else {
            unreachable!("answers with space")
        };
        result.map_err(|e| e.at(self.path(), "asking for free space"))
    }

    /// Returns the content of a small file of at most `limit` bytes.
    pub async fn read_file(&self, name: &str, limit: u64) -> Result<Vec<u8>> {
        self.open(name, OpenMode::Read).await?.read_all(limit).await
    }

    /// Replaces `name` by `content`, durably and atomically: writes a temporary file, flushes it, renames it, and syncs
    /// the directory.
    pub async fn replace_file(&self, name: &str, content: &[u8]) -> Result<()> {
        let staged = self.stage_file(name, content).await?;
        self.put_in_place(name, staged).await?;
        self.sync().await
    }

    /// Replaces like `replace_file`. The new file has the owner, the group and the permissions of `like`.
    pub async fn replace_file_like(&self, name: &str, content: &[u8], like: &File) -> Result<()> {
        let staged = self.stage(name, content, Some(like)).await?;
        self.put_in_place(name, staged).await?;
        self.sync().await
    }

    /// Renames the temporary file that `stage_file` wrote to `name`.
    pub async fn put_in_place(&self, name: &str, staged: Staged) -> Result<()> {
        match self.rename(&format!("{name}{TEMPORARY_SUFFIX}"), name).await {
            // A file server may repeat a rename whose reply was lost (NFS does), and then finds the old name gone.
            Err(e) if e.kind == ErrorKind::NotFound && self.is(name, &staged).await => Ok(()),
            renamed => renamed,
        }
    }

    async fn is(&self, name: &str, staged: &Staged) -> bool {
        self.open(name, OpenMode::Read).await.is_ok_and(|file| file.limits().inode == staged.inode)
    }

    /// Writes `content` durably to the temporary file of `name`, for `put_in_place`. A failure leaves no file behind.
    pub async fn stage_file(&self, name: &str, content: &[u8]) -> Result<Staged> {
        self.stage(name, content, None).await
    }

    async fn stage(&self, name: &str, content: &[u8], like: Option<&File>) -> Result<Staged> {
        let temporary = format!("{name}{TEMPORARY_SUFFIX}");
        self.unlink_if_present(&temporary).await?;
        let file = self.create_new(&temporary).await?;
        let written = async {
            if let Some(like) = like {
                let op = Op::KeepAttributes { file: file.handle(), like: like.handle() };
                self.unit(op, name, "keeping its owner and permissions").await?;
            }
            write_text(&file, content).await
        };
        let written = written.await;
        if written.is_err() {
            // If it cannot be removed now, the next open removes it as debris.
            let _ = self.unlink(&temporary).await;
        }
        written.map(|()| Staged { inode: file.limits().inode })
    }
}

/// A temporary file that `stage_file` has written.
#[derive(Debug)]
pub struct Staged {
    inode: u64,
}

/// Writes whole device blocks and then cuts the file to its length, because direct I/O cannot end inside a block.
async fn write_text(file: &File, content: &[u8]) -> Result<()> {
    let block = file.limits().logical_block.max(512) as usize;
    let mut buf = Buf::zeroed(content.len().next_multiple_of(block));
    buf[..content.len()].copy_from_slice(content);
    file.write(0, buf).await?;
    file.set_len(content.len() as u64).await?;
    file.flush().await
}
