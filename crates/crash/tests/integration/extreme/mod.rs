//! Extreme values in every field of the files that the engine reads, and then every verb.
//!
//! A file or a verb may be refused. Nothing may panic, and what was accepted must open again after each verb.
//! `EXTREME_CASES` says how many cases are drawn, `EXTREME_SEED` from which seed, and `EXTREME_CASE` plays one.

mod native;
mod redo;
mod verbs;

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::Rng;

/// Limits of the integers that files have, and values beside them that are sound elsewhere.
const EXTREMES: [u64; 14] = [
    0,
    1,
    (1 << 24) - 1,
    1 << 24,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    (1 << 48) - 1,
    1 << 48,
    (1 << 53) - 1,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

const CASES: u64 = 120;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Plays cases, each with its own generator.
fn play(test: &str, case: impl Fn(&mut Rng)) {
    let seed = variable("EXTREME_SEED").unwrap_or(8);
    let cases = match variable("EXTREME_CASE") {
        Some(one) => one..one + 1,
        None => 0..variable("EXTREME_CASES").unwrap_or(CASES),
    };
    for number in cases {
        let played = catch_unwind(AssertUnwindSafe(|| case(&mut Rng::new(seed << 32 | number))));
        assert!(
            played.is_ok(),
            "replay with EXTREME_SEED={seed} EXTREME_CASE={number} cargo test --locked --workspace --test extreme {test}"
        );
    }
}

fn draw<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}
