//! Gives the shared library its name for the loader: programs ask for the interface's version, not for a file.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libleasehold_dss.so.0");
}
