//! Generates the protobuf types from `proto/` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files = ["chunks", "commands", "live", "tasks", "work"]
        .map(|file| format!("{root}/antiphon/v1/{file}.proto"));
    println!("cargo:rerun-if-changed={root}");
    let descriptors = protox::compile(&files, [root])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
