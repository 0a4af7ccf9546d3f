package dev.spry.core.bundle;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.BundleException;

/**
 * Who vouches for a bundle: signatures over the bytes of its manifest, which holds the hash of every other file.
 *
 * <p>They stand in a file beside the manifest, a line for each key, so that a bundle may pass from one key to the next.
 */
public final class Signatures {
    public static final String FILE_NAME = "manifest.sig";
    /** Bytes: some thirty keys. */
    public static final int LARGEST = 4096;

    private Signatures() {}

    /** Refuse a manifest that the publisher did not sign; `signatures` are null where there is no file of them. */
    public static void check(byte[] manifest, byte[] signatures, String publisher) {
        if (signatures == null) {
            throw new BundleException("the bundle is not signed, and this device takes only those of the publisher "
                    + publisher + ": sign it with `spry keys sign` and upload it again");
        }
        byte[] signature = parse(signatures).get(publisher);
        if (signature == null || !Keys.verify(publisher, manifest, signature)) {
            throw new BundleException("the bundle is not signed by the publisher " + publisher
                    + ", and this device takes only that publisher's bundles: sign it with that key, or give the "
                    + "device the right one");
        }
    }

    /** The same for a bundle on disk. */
    public static void check(File folder, String publisher) throws IOException {
        File kept = new File(folder, FILE_NAME);
        byte[] signatures = kept.isFile() ? Files.readAllBytes(kept.toPath()) : null;
        check(Files.readAllBytes(new File(folder, Manifest.FILE_NAME).toPath()), signatures, publisher);
    }

    /** Each key's signature; refuses what is no file of signatures. */
    private static Map<String, byte[]> parse(byte[] data) {
        Map<String, byte[]> found = new LinkedHashMap<>();
        String text = data.length <= LARGEST ? new String(data, StandardCharsets.US_ASCII) : " ";
        for (String line : text.isEmpty() ? new String[0] : text.split("\r?\n")) {
            int space = line.indexOf(' ');
            byte[] signature = space < 0 ? null : Keys.signature(line.substring(space + 1));
            if (signature == null || !Keys.isKey(line.substring(0, space))) {
                throw new BundleException(FILE_NAME + " holds something else than signatures; sign the bundle again");
            }
            found.put(line.substring(0, space), signature);
        }
        return found;
    }
}
