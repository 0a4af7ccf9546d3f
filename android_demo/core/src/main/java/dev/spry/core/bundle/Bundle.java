package dev.spry.core.bundle;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import dev.spry.core.BundleException;
import dev.spry.core.Tensor;
import dev.spry.core.numbers.Safetensors;
import dev.spry.core.store.Disk;

/**
 * A bundle in a folder. Nothing outside the folder is ever read or written, whatever a manifest says.
 *
 * <p>Downloads check each file before it gets its name; `open` checks what came another way.
 */
public final class Bundle {
    public final File folder;
    public final Manifest manifest;

    public Bundle(File folder, Manifest manifest) {
        this.folder = folder;
        this.manifest = manifest;
    }

    /** A folder whose files, those that a runtime needs, are what the manifest says. */
    public static Bundle open(File folder, String runtime) throws IOException {
        Manifest manifest = Manifest.read(new File(folder, Manifest.FILE_NAME));
        for (FileSpec file : files(manifest, runtime)) {
            check(folder, file);
        }
        return new Bundle(folder, manifest);
    }

    /** The adapter and the head before training, under PEFT's keys. */
    public Map<String, Tensor> initialAdapter() throws IOException {
        File path = file(folder, manifest.adapter.file);
        Map<String, Tensor> found;
        try {
            found = Safetensors.parse(Files.readAllBytes(path.toPath())).tensors;
        } catch (IllegalArgumentException error) {
            throw new BundleException(
                    path + " cannot be read as safetensors (" + error.getMessage() + "); download the bundle again");
        }
        for (Parameter parameter : manifest.parameters()) {
            Tensor value = found.get(parameter.name);
            int[] shape = parameter.shape();
            if (value == null || !value.dtype().equals("float32") || !Arrays.equals(value.shape(), shape)) {
                throw new BundleException(path + ": expected " + parameter.name + " of shape " + Arrays.toString(shape)
                        + ", found "
                        + (value == null ? "none" : Arrays.toString(value.shape()) + " of " + value.dtype())
                        + "; export the bundle again");
            }
        }
        return new LinkedHashMap<>(found);
    }

    /** The model's own tokenizer.json. */
    public File tokenizer() {
        if (manifest.tokenizer == null) {
            throw new BundleException(
                    folder + " holds no tokenizer: its model came without one; export it from a folder that has it");
        }
        return file(folder, manifest.tokenizer);
    }

    /** All files but those that only other runtimes need. */
    public static List<FileSpec> files(Manifest manifest, String runtime) {
        Set<String> needed = needed(manifest.runtime(runtime));
        Set<String> foreign = new HashSet<>();
        for (RuntimeSpec other : manifest.runtimes.values()) {
            foreign.addAll(needed(other));
        }
        foreign.removeAll(needed);
        List<FileSpec> found = new ArrayList<>();
        for (FileSpec file : manifest.files) {
            if (!foreign.contains(file.path)) {
                found.add(file);
            }
        }
        return found;
    }

    private static Set<String> needed(RuntimeSpec runtime) {
        Set<String> found = new HashSet<>(runtime.files);
        for (ProgramSpec program : runtime.allPrograms()) {
            found.add(program.file);
        }
        return found;
    }

    // --- checking ---

    private static void check(File folder, FileSpec file) throws IOException {
        File path = file(folder, file.path);
        if (!path.getCanonicalPath().startsWith(folder.getCanonicalPath() + File.separator)) {
            throw new BundleException(path + " links to a place outside the bundle; copy the bundle with its files");
        }
        if (!path.isFile()) {
            throw new BundleException(path + " is missing from the bundle; download the bundle again");
        }
        long size = path.length();
        if (size != file.bytes) {
            throw new BundleException(path + " is " + (size < file.bytes ? "truncated" : "too long") + ": expected "
                    + file.bytes + " bytes, found " + size + "; download the bundle again");
        }
        String found = Disk.digest(path);
        if (!found.equals(file.sha256)) {
            throw new BundleException(path + " is corrupt: its sha256 is " + found.substring(0, 12) + "…, expected "
                    + file.sha256 + "; download the bundle again");
        }
    }

    /** A file below a bundle's folder. */
    public static File file(File folder, String path) {
        List<String> parts = Arrays.asList(path.split("/", -1));
        boolean strange = path.indexOf('\\') >= 0 || path.indexOf('\0') >= 0 || path.matches("[A-Za-z]:.*");
        if (strange || parts.contains("..") || parts.contains("")) {
            throw new BundleException(
                    folder + " names the file '" + path + "', which does not lie inside the bundle; do not trust it");
        }
        return new File(folder, path);
    }
}
