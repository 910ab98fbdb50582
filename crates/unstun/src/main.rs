//! See `unstun::main`.

fn main() -> std::process::ExitCode {
    unstun::main()
}
