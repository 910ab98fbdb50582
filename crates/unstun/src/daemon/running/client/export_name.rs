//! Names of exports that always refer to the same content.

use blk::manifest::ContentGeneration;

/// Separator between a disk's number and its generation. It has no meaning in a URI, a shell, XML or QEMU's options.
pub(crate) const GENERATION_MARK: &str = ".g";

/// Returns the export name that always refers to the same content.
pub(crate) fn lasting_name(vm: &str, number: u32, generation: ContentGeneration) -> String {
    format!("{vm}/disk{number}{GENERATION_MARK}{}", generation.present)
}
