//! Random numbers from a seed: 64 bits of state, integers only, the same on every machine.

/// A probability: `num` times out of `den`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio {
    pub num: u64,
    pub den: u64,
}

impl Ratio {
    pub const NEVER: Ratio = Ratio { num: 0, den: 1 };
    pub const ALWAYS: Ratio = Ratio { num: 1, den: 1 };

    pub const fn new(num: u64, den: u64) -> Ratio {
        assert!(den > 0 && num <= den);
        Ratio { num, den }
    }
}

/// SplitMix64: a Weyl sequence with an avalanche. Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// Returns an independent stream, so that one consumer's draws do not change another's.
    pub fn fork(&mut self) -> Rng {
        Rng::new(mix(self.u64()))
    }

    pub fn u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a uniform number in `0..bound`; 0 if `bound` is 0. The bias of the multiplication is below `bound /
    /// 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a uniform number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range: {low}..={high}");
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.u64(),
        }
    }

    pub fn chance(&mut self, ratio: Ratio) -> bool {
        self.below(ratio.den) < ratio.num
    }

    pub fn coin(&mut self) -> bool {
        self.u64() >> 63 == 1
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Mixes every input bit into all output bits. The function is a bijection.
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence_and_forks_differ() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert_eq!((a.u64(), a.u64()), (b.u64(), b.u64()));
        assert_ne!(a.fork().u64(), a.fork().u64());
        assert_ne!(Rng::new(1).u64(), Rng::new(2).u64());
    }

    #[test]
    fn bounds_are_met_and_not_exceeded() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 5];
        (0..5000).for_each(|_| seen[rng.below(5) as usize] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| (3..=4).contains(&rng.between(3, 4))));
        assert!((0..100).all(|_| rng.chance(Ratio::ALWAYS) && !rng.chance(Ratio::NEVER)));
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..20).collect();
        Rng::new(3).shuffle(&mut items);
        assert_ne!(items, (0..20).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..20).collect::<Vec<_>>());
    }
}
