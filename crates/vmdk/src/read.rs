//! Reads of headers and tables, and parsing of texts; long ones are parsed off the core.

use blk::{Buf, Env, File, Result};

/// Parses a text. The name is for errors.
pub(crate) type Parser<T> = fn(&str, &[u8]) -> Result<T>;

/// Maximum length of a text that is parsed on the core: 400 lines of 40 bytes take about 0.1 ms, as long as the
/// transfer to another thread and back.
const PARSED_IN_PLACE_BYTES_MAX: usize = 16 << 10;

/// Parses `bytes`, off the core if they are many: the longest text takes tens of milliseconds, in which no guest would
/// be served.
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

/// Reads a header, or a part of a directory or of tables; it is counted as such.
pub(crate) async fn read_tables(file: &File, offset: u64, len: usize) -> Result<Buf> {
    let (buf, result) = file.tables().read(offset, Buf::alloc(len)).await;
    result.map(|()| buf)
}
