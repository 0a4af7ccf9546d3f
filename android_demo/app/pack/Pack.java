import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.zip.CRC32;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import java.util.zip.ZipOutputStream;

/**
 * Adds native libraries to an APK as Android maps them: not compressed, each at a multiple of 16 kB, which holds for
 * pages of 4 kB too. What else is not compressed lies at a multiple of 4.
 *
 * <pre>java Pack.java IN.apk OUT.apk FOLDER    (FOLDER/lib/ABI/*.so)</pre>
 */
final class Pack {
    private static final int PAGE = 16384;
    private static final int WORD = 4;
    private static final int ALIGNMENT = 0xd935; // the extra field by which apksigner keeps an entry's place
    private static final int HEADER = 30;
    private static final LocalDateTime THEN = LocalDateTime.of(1981, 1, 1, 1, 1, 2); // the same files, the same APK

    private final Counted counted;
    private final ZipOutputStream out;

    private Pack(OutputStream file) {
        counted = new Counted(file);
        out = new ZipOutputStream(counted);
    }

    public static void main(String[] arguments) throws IOException {
        Path folder = Paths.get(arguments[2]);
        try (OutputStream file = Files.newOutputStream(Paths.get(arguments[1]));
                ZipFile in = new ZipFile(arguments[0])) {
            Pack pack = new Pack(file);
            for (Enumeration<? extends ZipEntry> all = in.entries(); all.hasMoreElements();) {
                ZipEntry entry = all.nextElement();
                pack.add(entry.getName(), entry.getMethod(), WORD, in.getInputStream(entry).readAllBytes());
            }
            for (Path library : libraries(folder)) {
                String name = folder.relativize(library).toString();
                pack.add(name, ZipEntry.STORED, PAGE, Files.readAllBytes(library));
            }
            pack.out.finish();
        }
    }

    private static List<Path> libraries(Path folder) throws IOException {
        List<Path> found = new ArrayList<>();
        try (Stream<Path> files = Files.walk(folder.resolve("lib"))) {
            found.addAll(files.filter(file -> file.toString().endsWith(".so")).collect(Collectors.toList()));
        }
        Collections.sort(found);
        return found;
    }

    private void add(String name, int method, int multiple, byte[] content) throws IOException {
        ZipEntry entry = new ZipEntry(name);
        entry.setTimeLocal(THEN);
        entry.setMethod(method);
        if (method == ZipEntry.STORED) {
            CRC32 sum = new CRC32();
            sum.update(content);
            entry.setCrc(sum.getValue());
            entry.setSize(content.length);
            entry.setExtra(padding(name, multiple));
        }
        out.putNextEntry(entry);
        out.write(content);
        out.closeEntry();
    }

    /** An extra field that ends where the next multiple begins. */
    private byte[] padding(String name, int multiple) throws IOException {
        out.flush();
        long start = counted.written + HEADER + name.length() + 6;
        int zeros = (int) ((multiple - start % multiple) % multiple);
        ByteBuffer field = ByteBuffer.allocate(6 + zeros).order(ByteOrder.LITTLE_ENDIAN);
        field.putShort((short) ALIGNMENT).putShort((short) (2 + zeros)).putShort((short) multiple);
        return field.array();
    }

    private static final class Counted extends OutputStream {
        private final OutputStream file;
        private long written;

        Counted(OutputStream file) {
            this.file = file;
        }

        @Override
        public void write(int one) throws IOException {
            file.write(one);
            written++;
        }

        @Override
        public void write(byte[] bytes, int from, int count) throws IOException {
            file.write(bytes, from, count);
            written += count;
        }
    }
}
