//! Generates the protobuf types from `proto/` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files = ["antiphon/v1/chunks.proto", "antiphon/v1/out.proto"].map(|file| format!("{root}/{file}"));
    println!("cargo:rerun-if-changed={root}");
    let descriptors = protox::compile(&files, [root])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
