//! See `unstun::cli`.

fn main() -> std::process::ExitCode {
    unstun::cli::main()
}
