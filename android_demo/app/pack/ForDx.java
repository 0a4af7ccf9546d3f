import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Enumeration;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;

/**
 * Writes a jar's classes of Java 11 as classes of Java 8, which dx reads: private members, which classes that were
 * written in one file may share since Java 11, become the package's, and so are called as Java 8 calls them.
 *
 * <pre>java ForDx.java JAR FOLDER [LEFT_OUT ...]</pre>
 *
 * What Java 8 has no word for (invokedynamic to join strings) is refused. Packages to leave out are named by their path.
 */
final class ForDx {
    private static final int JAVA_8 = 52;
    private static final int PRIVATE = 0x0002;
    private static final int INVOKE_DYNAMIC = 18;

    private ForDx() {}

    public static void main(String[] arguments) throws IOException {
        Path out = Paths.get(arguments[1]);
        try (ZipFile jar = new ZipFile(arguments[0])) {
            for (Enumeration<? extends ZipEntry> all = jar.entries(); all.hasMoreElements();) {
                ZipEntry entry = all.nextElement();
                if (entry.getName().endsWith(".class") && !leftOut(entry.getName(), arguments)) {
                    Path file = out.resolve(entry.getName());
                    Files.createDirectories(file.getParent());
                    Files.write(file, older(entry.getName(), jar.getInputStream(entry).readAllBytes()));
                }
            }
        }
    }

    private static boolean leftOut(String name, String[] arguments) {
        for (int i = 2; i < arguments.length; i++) {
            if (name.startsWith(arguments[i])) {
                return true;
            }
        }
        return false;
    }

    private static byte[] older(String name, byte[] code) throws IOException {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(code));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeInt(in.readInt());
        out.writeShort(in.readShort());
        out.writeShort(Math.min(JAVA_8, in.readShort()));
        constants(name, in, out);
        copy(in, out, 6); // flags, this, super
        int interfaces = in.readShort();
        out.writeShort(interfaces);
        copy(in, out, 2 * interfaces);
        members(in, out);
        members(in, out);
        copy(in, out, in.available());
        return bytes.toByteArray();
    }

    private static void constants(String name, DataInputStream in, DataOutputStream out) throws IOException {
        int count = in.readUnsignedShort();
        out.writeShort(count);
        for (int i = 1; i < count; i++) {
            int kind = in.readByte();
            out.writeByte(kind);
            switch (kind) {
                case 1: // a text
                    out.writeUTF(in.readUTF());
                    break;
                case 5: // a long or a double, which count twice
                case 6:
                    copy(in, out, 8);
                    i++;
                    break;
                case 7: // a class, a text's constant, a method's type
                case 8:
                case 16:
                    copy(in, out, 2);
                    break;
                case 15:
                    copy(in, out, 3);
                    break;
                case INVOKE_DYNAMIC:
                    throw new IOException(name + " uses invokedynamic, which Java 8 for Android does not have");
                default:
                    copy(in, out, 4);
            }
        }
    }

    /** Fields, or methods. */
    private static void members(DataInputStream in, DataOutputStream out) throws IOException {
        int count = in.readUnsignedShort();
        out.writeShort(count);
        for (int i = 0; i < count; i++) {
            out.writeShort(in.readShort() & ~PRIVATE);
            copy(in, out, 4); // name, type
            int attributes = in.readUnsignedShort();
            out.writeShort(attributes);
            for (int j = 0; j < attributes; j++) {
                copy(in, out, 2);
                int length = in.readInt();
                out.writeInt(length);
                copy(in, out, length);
            }
        }
    }

    private static void copy(DataInputStream in, DataOutputStream out, int count) throws IOException {
        byte[] bytes = new byte[count];
        in.readFully(bytes);
        out.write(bytes);
    }
}
