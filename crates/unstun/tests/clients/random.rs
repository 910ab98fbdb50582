//! SplitMix64: one number of state, and the same sequence on every machine and in every boot.

pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn bytes(&mut self, length: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length as usize + 8);
        while (bytes.len() as u64) < length {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(length as usize);
        bytes
    }
}
