package dev.spry.core.wire;

import java.io.ByteArrayOutputStream;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Predicate;

import dev.spry.core.Event;

/** A real server on a real socket that answers, stumbles, drips and cuts connections as told, byte for byte. */
public final class Stage implements Closeable {
    /** What a request was. */
    public static final class Request {
        public final String method;
        public final String path;
        public final Map<String, String> headers = new HashMap<>();
        public byte[] body;

        Request(String line) {
            String[] parts = line.split(" ");
            method = parts[0];
            path = parts[1];
        }

        public String text() {
            return new String(body, StandardCharsets.UTF_8);
        }
    }

    /** Writes an answer, or does not. */
    public interface Answer {
        void to(Request request, Socket socket) throws IOException, InterruptedException;
    }

    public final List<Request> seen = Collections.synchronizedList(new ArrayList<>());
    public final List<Double> pauses = Collections.synchronizedList(new ArrayList<>());
    public final List<Event> told = Collections.synchronizedList(new ArrayList<>());
    /** What the jobs that run ask of rows: answered apart from the script, and not written down. */
    public volatile String openJobs = "[]";
    private final Deque<Answer> script = new ArrayDeque<>();
    private final ServerSocket socket = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private volatile Answer otherwise = (request, to) -> to.close();

    public Stage() throws IOException {
        thread(() -> {
            while (!socket.isClosed()) {
                Socket connection = socket.accept();
                thread(() -> serve(connection));
            }
        });
    }

    public String address() {
        return "http://127.0.0.1:" + socket.getLocalPort();
    }

    public Server.Builder device() {
        return new Server.Builder(address()).pause(pauses::add).tell(told::add).patience(3000);
    }

    public List<String> kinds() {
        List<String> kinds = new ArrayList<>();
        synchronized (told) {
            for (Event event : told) {
                kinds.add(event.kind);
            }
        }
        return kinds;
    }

    // --- the script ---

    public synchronized Stage then(Answer answer) {
        script.add(answer);
        return this;
    }

    /** What is answered where the script says nothing. */
    public Stage otherwise(Answer answer) {
        otherwise = answer;
        return this;
    }

    /** An answer that waits in the script for a request that it is meant for; others get what is answered otherwise. */
    public synchronized Stage then(Predicate<Request> to, int status, String body) {
        byte[] data = body.getBytes(StandardCharsets.UTF_8);
        return then((request, socket) -> {
            if (to.test(request)) {
                send(socket, status, data);
            } else {
                putBack(to, status, body);
                otherwise.to(request, socket);
            }
        });
    }

    private synchronized void putBack(Predicate<Request> to, int status, String body) {
        then(to, status, body);
        script.addFirst(script.removeLast());
    }

    public Stage then(int status, String body, String... headers) {
        return then((request, to) -> send(to, status, body.getBytes(StandardCharsets.UTF_8), headers));
    }

    public Stage problem(int status, String code, String detail, String... headers) {
        String body = "{\"title\": \"t\", \"status\": " + status + ", \"detail\": \"" + detail + "\", \"code\": \""
                + code + "\"}";
        String[] all = new String[headers.length + 2];
        System.arraycopy(headers, 0, all, 0, headers.length);
        all[headers.length] = "Content-Type";
        all[headers.length + 1] = "application/problem+json";
        return then(status, body, all);
    }

    public static void send(Socket to, int status, byte[] body, String... headers) throws IOException {
        head(to, status, body.length, headers);
        to.getOutputStream().write(body);
        to.getOutputStream().flush();
    }

    /** The head of an answer that says to have so many bytes. */
    public static void head(Socket to, int status, long length, String... headers) throws IOException {
        StringBuilder head = new StringBuilder("HTTP/1.1 " + status + " Told\r\n");
        if (status != 204) {
            head.append("Content-Length: ").append(length).append("\r\n");
        }
        for (int i = 0; i < headers.length; i += 2) {
            head.append(headers[i]).append(": ").append(headers[i + 1]).append("\r\n");
        }
        to.getOutputStream().write(head.append("\r\n").toString().getBytes(StandardCharsets.ISO_8859_1));
        to.getOutputStream().flush();
    }

    // --- the socket ---

    private interface Work {
        void run() throws IOException, InterruptedException;
    }

    private static void thread(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException | InterruptedException end) {
                return; // the other side has had enough, or the test is over
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void serve(Socket connection) throws IOException, InterruptedException {
        try (Socket open = connection) {
            for (Request request = read(open.getInputStream()); request != null && !open.isClosed();
                    request = open.isClosed() ? null : read(open.getInputStream())) {
                if (request.path.equals("/v1/open-jobs")) {
                    send(open, 200, openJobs.getBytes(StandardCharsets.UTF_8));
                    continue;
                }
                seen.add(request);
                next().to(request, open);
            }
        }
    }

    private synchronized Answer next() {
        return script.isEmpty() ? otherwise : script.remove();
    }

    private static Request read(InputStream in) throws IOException {
        String line = line(in);
        if (line.isEmpty()) {
            return null;
        }
        Request request = new Request(line);
        for (String header = line(in); !header.isEmpty(); header = line(in)) {
            String[] parts = header.split(": ", 2);
            request.headers.put(parts[0].toLowerCase(Locale.ROOT), parts[1]);
        }
        request.body = new byte[Integer.parseInt(request.headers.getOrDefault("content-length", "0"))];
        for (int at = 0, count = 0; at < request.body.length && count >= 0; at += Math.max(count, 0)) {
            count = in.read(request.body, at, request.body.length - at);
        }
        return request;
    }

    private static String line(InputStream in) throws IOException {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        for (int one = in.read(); one >= 0 && one != '\n'; one = in.read()) {
            if (one != '\r') {
                found.write(one);
            }
        }
        return new String(found.toByteArray(), StandardCharsets.ISO_8859_1);
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
