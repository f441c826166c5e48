//! Builds anew when a migration is added: the macro that embeds them sees only the files that it knew.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
