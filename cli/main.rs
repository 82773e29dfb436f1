//! The `tenure` binary. Its code is in [`tenure::cli`].

fn main() -> std::process::ExitCode {
    tenure::cli::main()
}
