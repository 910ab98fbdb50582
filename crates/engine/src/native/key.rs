//! Keys of the catalogue's items.

/// First kind of item that belongs to a user of the store; smaller ones are the store's own.
pub const USER_KINDS: u8 = 16;

/// Key of an item of the catalogue: a kind, and two numbers whose meaning the kind defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Decides the meaning of the rest; see [`USER_KINDS`].
    pub kind: u8,
    /// Of a VM's items: the VM's id.
    pub major: u128,
    /// Of a node's or a group's item: its number.
    pub minor: u64,
}
