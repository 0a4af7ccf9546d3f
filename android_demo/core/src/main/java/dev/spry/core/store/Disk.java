package dev.spry.core.store;

import java.io.File;
import java.io.FileInputStream;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Locale;

import dev.spry.core.Event;
import dev.spry.core.StoreException;
import dev.spry.core.Tell;

/** Files that are whole, whatever ends the process or the power. */
public final class Disk {
    static final String TEMPORARY = ".writing-";
    private static final int CHUNK = 1 << 16;

    private Disk() {
    }

    /** Put a file in place as a whole, for this user's eyes only: after a crash there is the old one or the new one. */
    public static void write(File path, byte[]... parts) {
        File folder = path.getParentFile();
        long size = 0;
        for (byte[] part : parts) {
            size += part.length;
        }
        Path temporary = null;
        try {
            makeFolder(folder);
            temporary = Files.createTempFile(folder.toPath(), TEMPORARY, "");
            try (FileOutputStream file = new FileOutputStream(temporary.toFile())) {
                for (byte[] part : parts) {
                    file.write(part);
                }
                file.getFD().sync();
            }
            Files.move(temporary, path.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
            temporary = null;
        } catch (IOException error) {
            throw problem(error, folder, size);
        } finally {
            if (temporary != null) {
                temporary.toFile().delete();
            }
        }
        syncFolder(folder);
    }

    public static void makeFolder(File folder) {
        if (!folder.isDirectory() && !folder.mkdirs() && !folder.isDirectory()) {
            throw new StoreException(folder + " cannot be made; give a folder that this app may write to");
        }
    }

    /** A file's bytes; null where there is none. */
    static byte[] read(File path) {
        try {
            return Files.readAllBytes(path.toPath());
        } catch (NoSuchFileException | FileNotFoundException missing) {
            return null;
        } catch (IOException error) {
            throw unreadable(path, error);
        }
    }

    /** A text in a file; null where there is none. */
    static String readText(File path) {
        byte[] data = read(path);
        return data == null ? null : new String(data, StandardCharsets.UTF_8);
    }

    /** What went wrong with a file, for somebody who can make room. */
    public static StoreException problem(IOException error, File folder, long needed) {
        String told = String.valueOf(error.getMessage());
        boolean full = told.contains("No space left") || told.contains("ENOSPC") || told.contains("quota")
                || told.contains("EDQUOT");
        String why = "nothing can be written to " + folder + " (" + told + "); look at the device's storage";
        return full ? full(folder, needed) : new StoreException(why);
    }

    private static StoreException unreadable(File path, IOException error) {
        return new StoreException(path + " cannot be read (" + error.getMessage() + "); look at the device's storage");
    }

    public static StoreException full(File folder, long needed) {
        return new StoreException(String.format(Locale.ROOT,
                "the disk of %s is full: %.1f MB are needed, %.1f MB are free; make room (what was downloaded is kept)",
                folder, needed / 1e6, folder.getUsableSpace() / 1e6));
    }

    /** Move a file that cannot be read out of the way, for somebody to look at. */
    static void setAside(File path, String why, Tell tell) {
        File aside = new File(path.getParentFile(), path.getName() + ".damaged");
        path.renameTo(aside);
        tell.tell(Event.of("warning",
                path + " could not be read (" + why + "); it was set aside as " + aside.getName()));
    }

    static void removeTree(File path) {
        File[] inside = path.listFiles();
        if (inside != null) {
            for (File one : inside) {
                removeTree(one);
            }
        }
        path.delete();
    }

    /** What was moved into a folder stays there after a power cut. */
    private static void syncFolder(File folder) {
        try (FileChannel channel = FileChannel.open(folder.toPath(), StandardOpenOption.READ)) {
            channel.force(true);
        } catch (IOException error) {
            return; // some file systems cannot
        }
    }

    // --- digests ---

    public static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException error) {
            throw new AssertionError(error); // every Java has it
        }
    }

    /** A file's sha256 in hexadecimal digits, read in pieces. */
    public static String digest(File path) {
        MessageDigest digest = sha256();
        byte[] buffer = new byte[CHUNK];
        try (FileInputStream file = new FileInputStream(path)) {
            for (int count = file.read(buffer); count >= 0; count = file.read(buffer)) {
                digest.update(buffer, 0, count);
            }
        } catch (IOException error) {
            throw unreadable(path, error);
        }
        return hex(digest.digest());
    }

    public static String hex(byte[] digest) {
        StringBuilder found = new StringBuilder();
        for (byte one : digest) {
            found.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return found.toString();
    }
}
