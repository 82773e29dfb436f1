//! The `tenure` binary. Its code is in [`tenure::cli`].

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    tenure::cli::main()
}
