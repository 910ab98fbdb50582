//! The functions of librados and librbd, bound at run time: the program runs on hosts without them.
//!
//! Signatures: `rados/librados.h` and `rbd/librbd.h` of Ceph 16.2. Later versions keep them.

// The binding.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// `rados_t`, `rados_ioctx_t`, `rbd_image_t` and `rbd_completion_t`.
pub(super) type Cluster = *mut c_void;
pub(super) type Pool = *mut c_void;
pub(super) type RawImage = *mut c_void;
pub(super) type Completion = *mut c_void;
/// `rbd_callback_t`.
pub(super) type Callback = unsafe extern "C" fn(Completion, *mut c_void);

/// `rbd_image_watcher_t`: a client that has an image open for writing.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Watcher {
    pub address: *mut c_char,
    pub _id: i64,
    pub _cookie: u64,
}

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;

/// Defines a struct with the functions of a shared library, and their binding.
macro_rules! functions {
    ($name:ident of $file:literal { $($function:ident($($argument:ty),*) -> $result:ty;)* }) => {
        pub(super) struct $name {
            $(pub $function: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Unmapped after the last use of the functions, which is never: see [`library`].
            _library: Library,
        }

        impl $name {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the libraries' initialisers run on loading; those of Ceph have no preconditions.
                let library = unsafe { Library::new($file) }?;
                Ok($name {
                    // SAFETY: the type is that of the library's header.
                    $($function: unsafe { *library.get(concat!(stringify!($function), "\0").as_bytes())? },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    Rados of "librados.so.2" {
        rados_create2(*mut Cluster, *const c_char, *const c_char, u64) -> c_int;
        rados_conf_read_file(Cluster, *const c_char) -> c_int;
        rados_conf_parse_env(Cluster, *const c_char) -> c_int;
        rados_conf_set(Cluster, *const c_char, *const c_char) -> c_int;
        rados_connect(Cluster) -> c_int;
        rados_blocklist_add(Cluster, *mut c_char, u32) -> c_int;
        rados_shutdown(Cluster) -> ();
        rados_ioctx_create(Cluster, *const c_char, *mut Pool) -> c_int;
        rados_ioctx_set_namespace(Pool, *const c_char) -> ();
        rados_ioctx_destroy(Pool) -> ();
    }
}

functions! {
    Rbd of "librbd.so.1" {
        rbd_create(Pool, *const c_char, u64, *mut c_int) -> c_int;
        rbd_open(Pool, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_close(RawImage) -> c_int;
        rbd_get_features(RawImage, *mut u64) -> c_int;
        rbd_get_size(RawImage, *mut u64) -> c_int;
        rbd_resize(RawImage, u64) -> c_int;
        rbd_lock_acquire(RawImage, c_int) -> c_int;
        rbd_lock_release(RawImage) -> c_int;
        rbd_lock_get_owners(RawImage, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup(*mut *mut c_char, usize) -> ();
        rbd_watchers_list(RawImage, *mut Watcher, *mut usize) -> c_int;
        rbd_watchers_list_cleanup(*mut Watcher, usize) -> ();
        rbd_lock_break(RawImage, c_int, *const c_char) -> c_int;
        rbd_aio_create_completion(*mut c_void, Callback, *mut Completion) -> c_int;
        rbd_aio_get_return_value(Completion) -> isize;
        rbd_aio_release(Completion) -> ();
        rbd_aio_read(RawImage, u64, usize, *mut c_char, Completion) -> c_int;
        rbd_aio_write(RawImage, u64, usize, *const c_char, Completion) -> c_int;
        rbd_aio_discard(RawImage, u64, u64, Completion) -> c_int;
        rbd_aio_write_zeroes(RawImage, u64, usize, Completion, c_int, c_int) -> c_int;
        rbd_aio_flush(RawImage, Completion) -> c_int;
    }
}

pub(super) struct Libraries {
    pub rados: Rados,
    pub rbd: Rbd,
}

/// Returns the libraries, which are loaded at the first use and stay; or why they cannot be.
pub(super) fn libraries() -> Result<&'static Libraries, String> {
    static LIBRARIES: OnceLock<Result<Libraries, String>> = OnceLock::new();
    let load = || {
        let both = Rados::load().and_then(|rados| Ok(Libraries { rados, rbd: Rbd::load()? }));
        both.map_err(|e| format!("{e}; install Ceph's client libraries (Debian's package librbd1)"))
    };
    LIBRARIES.get_or_init(load).as_ref().map_err(Clone::clone)
}
