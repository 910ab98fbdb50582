//! Parsing of texts, off the core where they are long.

use blk::{Env, Result};

/// Reads a text. Its name is for errors.
pub(crate) type Parser<T> = fn(&str, &[u8]) -> Result<T>;

/// A text up to this length is parsed where it was read: 400 lines of 40 bytes take some 0.1 ms, about what handing them to
/// another thread and back takes.
const PARSED_IN_PLACE_BYTES_MAX: usize = 16 << 10;

/// Parses `bytes`, off the core if they are many: the longest text takes tens of milliseconds, in which no guest is served.
pub(crate) async fn parse<T: Send + 'static>(
    env: &Env,
    file: String,
    bytes: Vec<u8>,
    parser: Parser<T>,
) -> Result<T> {
    match bytes.len() <= PARSED_IN_PLACE_BYTES_MAX {
        true => parser(&file, &bytes),
        false => env.offload(move || parser(&file, &bytes)).await,
    }
}
