//! `unstun convert`: offline, without a daemon.

use api::Converted;
use api::error::{Error, ErrorKind, Result};
use api::output::Output;
use api::progress;
use api::units::format_bytes;

use crate::cli::ConvertArgs;
use crate::daemon;

pub(super) fn run(args: &ConvertArgs, output: Output) -> Result<()> {
    let (chain, raw) = (&args.chain, &args.output);
    chain.metadata().map_err(|e| Error::at_path(chain.display(), "no such file", &e))?;
    if raw.symlink_metadata().is_ok() {
        let message = format!("{} exists already; choose another name", raw.display());
        return Err(Error::new(ErrorKind::Exists, message));
    }
    let bar = progress::bar(0)?;
    let converted = daemon::convert(chain, raw, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message(format!("{} of {}", format_bytes(done), format_bytes(total)));
    })?;
    bar.finish();
    output.result(&converted, describe)
}

fn describe(converted: &Converted) -> String {
    let (size, written) = (format_bytes(converted.size_bytes), format_bytes(converted.bytes_written));
    let output = converted.output.display();
    format!("{output}: {size}, {written} of data, from {} layers", converted.layers)
}
