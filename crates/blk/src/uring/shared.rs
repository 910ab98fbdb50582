//! Recognises files that other hosts may reach too.

use std::os::fd::OwnedFd;

/// `f_type` of file systems that several hosts can mount (linux/magic.h, and their own headers).
const SHARED: [u64; 16] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x7461_636f, // OCFS2
    0x0116_1970, // GFS2
    0x00c3_6400, // CephFS
    0x6573_5546, // FUSE and virtiofs: the file system behind it is not known here
    0x0102_1997, // 9p
    0x5346_414f, // AFS
    0x0bd0_0bd0, // Lustre
    0x1983_0326, // BeeGFS
    0x4750_4653, // GPFS
    0x786f_4256, // VirtualBox shared folders
    0x2003_0528, // OrangeFS
    0xaad7_aaea, // PanFS
];

/// Returns whether the regular file is on such a file system; true if the kernel does not report it.
pub(super) fn is_on_shared(fd: &OwnedFd) -> bool {
    // The numbers have 32 bits, whatever type the platform gives the field.
    rustix::fs::fstatfs(fd).map_or(true, |found| SHARED.contains(&u64::from(found.f_type as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_file_system_is_not_shared() {
        assert!(!is_on_shared(&std::fs::File::open("/proc/self/stat").unwrap().into()));
    }
}
